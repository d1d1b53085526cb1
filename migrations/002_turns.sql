-- Turns: the queue of what people ask, what was asked, how the runs go, and what they cost.

-- How the run of a request goes. What was asked stands in `requests`.
create table turns (
    id                bigint      generated always as identity primary key,
    conversation_id   bigint      references conversations (id), -- null: an operator asked
    worktree_id       bigint      references worktrees (id),
    session_id        bigint      references sessions (id) on delete set null,
    state             text        not null default 'queued'
                      check (state in ('queued', 'running', 'done', 'failed', 'stopped', 'timed-out', 'interrupted', 'refused')),
    reason            text,                                -- one sentence for people, set with every end but done
    notices           text[]      not null default '{}',   -- what the reply must say besides the answer
    outcome           jsonb,                               -- what came of it (bot/thread/outcome.py); null: its state says it
    -- The head branch of a pull request that is to work in the worktree of an issue it closes. Before the turn the
    -- worktree's node checks whether it can be switched there; otherwise the pull request gets a worktree of its own.
    switch_to         text,
    -- Where it waits, and for how long.
    queue_node        text,                                -- of its worktree; null where it has none
    queue_platform    text,                                -- of its worktree or thread, as the next
    queue_repository_id bigint,
    requested_by_id   bigint,                              -- GitHub's id of the person; null: an operator asked
    -- Without an agent it takes no agent's place, and goes in line with all turns of its worktree.
    needs_agent       boolean     not null default true,
    round             integer     not null default 0,      -- a person has one turn in each round; earlier rounds go first
    not_before        timestamptz,                         -- queued again until then, because of `reason`
    blocked_by        text[],                              -- the issues that it waits for, as owner/name#1; null: for none
    asks_since        timestamptz,                         -- one of them was closed without being done: a person decides
    waiting_since     timestamptz,                         -- when the first such problem was met; null once the agent began
    -- The claim: every effect of a run is written where claim = token.
    claim             uuid,
    worker            text,                                -- whose process lock tells whether the run is alive
    stop_requested_at timestamptz,
    stop_reason       text,
    cut_offs          integer     not null default 0,      -- crashes survived; the second ends the turn
    resuming          boolean     not null default false,  -- was cut off: the agent is told so
    head_before       text,                                -- the commit at which the run began: its changes start there
    -- What the agent was given and does.
    agent             text,                                -- of its session, which may be deleted before the turn
    model             text,                                -- as the agent or the model's answers tell it
    read              text[]      not null default '{}',   -- what it was given to read, for people: part of the answer
    read_whole_thread boolean     not null default false,  -- later turns of its session are given only what is new
    phase             text,                                -- what is done before the agent starts; null while it works
    plan              text[]      not null default '{}',   -- each entry after its state and a space
    latest_words      text        not null default '',     -- the end of what it says, without secrets
    answer            text,                                -- set once the agent is done: a resumed run does not ask again
    pushed_net        integer[],                           -- files changed, commits ahead and behind, against its base
    thread_answers    text[]      not null default '{}',   -- in threads of inline comments, each after its id and a space
    pushed_to         text,                                -- the branch on GitHub with its changes; null: none were pushed
    pushed_head       text,                                -- the commit there: its changes end there
    cost_usd          double precision,                    -- of this turn alone, where the agent reports it
    tokens            bigint,
    created_at        timestamptz not null default now(),
    started_at        timestamptz,
    finished_at       timestamptz,
    expired           boolean     not null default false,  -- HISTORY_RETENTION_DAYS after the end its texts are deleted
    kept              jsonb,                               -- what its kind keeps beside the answer, such as a review's remarks
    description       text,                                -- of the pull request, as the agent left it
    told_of_check     boolean     not null default false,  -- its agent was told once that the check fails
    undoes            bigint,                              -- the turn whose changes this one took back
    met_push          boolean     not null default false,  -- its push merges what people pushed while it ran
    settled           boolean     not null default false,  -- people have nothing to do about it any more
    -- What people have to do about it, as far as its own row tells: the view `waiting` has the whole rule.
    needs             text        generated always as (case
                          when settled then null
                          when state = 'queued' and asks_since is not null then 'answer'
                          when state in ('failed', 'timed-out', 'interrupted') then 'retry'
                          when state <> 'done' then null
                          when outcome->>'came' = 'plan' then 'approve'
                          when outcome->>'asked' = 'true' then 'answer'
                          when outcome #>> '{check,state}' = 'failed' then 'retry' end) stored,
    check ((state = 'running') = (claim is not null)),
    check ((state in ('queued', 'running')) = (finished_at is null)),
    check (state in ('queued', 'running', 'done') or reason is not null),
    check (finished_at is not null or not expired)
);
create unique index turns_one_running_per_worktree on turns (worktree_id) where state = 'running';
-- The queue: of each repository, the oldest of its node; and the rounds of a node and of a person.
create index turns_queued on turns (queue_node, needs_agent, queue_platform, queue_repository_id, round, id) where state = 'queued';
create index turns_running on turns (queue_node) where state = 'running';
create index turns_blocked on turns (conversation_id) where state = 'queued' and blocked_by is not null;
create index turns_rounds on turns (queue_node, round) where state = 'queued' and needs_agent;
create index turns_rounds_of_person on turns (requested_by_id, round)
    where state in ('queued', 'running') and needs_agent;
create index turns_unfinished_by_conversation on turns (conversation_id, id) where state in ('queued', 'running');
create index turns_unfinished_by_worktree on turns (worktree_id, id) where state in ('queued', 'running');
create index turns_unfinished_alone on turns (worktree_id, id)
    where state in ('queued', 'running') and not needs_agent;
create unique index turns_by_conversation on turns (conversation_id, id);
create index turns_by_person on turns (requested_by_id, created_at);
create index turns_checked on turns (queue_platform, queue_repository_id, id) where outcome ? 'check';
create index turns_by_pushed_head on turns (pushed_head) where pushed_head is not null;
create index turns_by_pushed_branch on turns (pushed_to, queue_repository_id, id) where pushed_to is not null;
-- What may wait for a person is a small part of what ended.
create index turns_needing_people on turns (conversation_id, id) where needs is not null;
-- With all that is summed over days, which reads no rows then.
create index turns_by_end on turns (finished_at)
    include (id, state, started_at, needs_agent, cost_usd, tokens, queue_platform, queue_repository_id, requested_by_id)
    where finished_at is not null;
create index turns_by_repository on turns (queue_platform, queue_repository_id, id);
create index turns_not_done on turns (state, id) where state not in ('queued', 'running', 'done');
create index turns_with_texts on turns (finished_at) where finished_at is not null and not expired;
-- For the deletion of sessions and worktrees.
create index turns_by_session on turns (session_id) where session_id is not null;
create index turns_by_worktree on turns (worktree_id) where worktree_id is not null;
create index turns_by_undone on turns (undoes) where undoes is not null;
-- What waits is a small part of a long history. It is analyzed soon after it changed, not after a tenth of all rows has,
-- and dead entries are removed, which are in the way of what waits.
alter table turns set (autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000,
                       autovacuum_vacuum_scale_factor = 0.02);

-- A time in ISO 8601 with its offset means the same in every session, unlike other texts.
create function threadtree_time(iso text) returns timestamptz language sql immutable strict as $$ select iso::timestamptz $$;

-- What came of a turn, in a word; null before its end.
create function threadtree_outcome(state text, outcome jsonb) returns text language sql immutable as $$
    select case when state not in ('queued', 'running') then coalesce(outcome->>'came', state) end
$$;

-- What was asked by each turn (bot/ask.py), with the columns by which statements look for it. While it waits, further
-- parts of a review join it; its texts are empty once the turn is `expired`.
create table requests (
    turn_id         bigint      primary key references turns (id) on delete cascade,
    conversation_id bigint,                                -- that of its turn
    ask             jsonb       not null,
    verb            text        not null generated always as (ask->>'verb') stored,
    requested_by    text        not null generated always as (ask #>> '{by,login}') stored,
    asked_at        timestamptz not null generated always as (threadtree_time(ask->>'at')) stored,
    review_id       bigint      generated always as ((ask #>> '{review,id}')::bigint) stored,
    retry_of        bigint      generated always as ((ask->>'retry_of')::bigint) stored,
    -- A request that is asked while a turn of its thread runs may be told to the agent of that turn; then its own turn ends
    -- without a run. Until the agent has it, it waits in the queue like any other.
    joins           bigint,                                -- the turn that ran when this was asked, and may be told it
    is_told         boolean     not null default false,    -- the agent of that turn was told it, or is told it now
    words           tsvector,                              -- by which a search finds it
    foreign key (conversation_id, turn_id) references turns (conversation_id, id) on delete cascade
);
create unique index requests_one_per_review on requests (conversation_id, review_id) where review_id is not null;
create index requests_by_conversation on requests (conversation_id, turn_id);
create index requests_joining on requests (joins) where joins is not null;
create index requests_by_words on requests using gin (words) with (fastupdate = off);

-- What the agent of a turn did, one line each, and what came of it: for STEP_RETENTION_DAYS.
create table steps (
    turn_id bigint      not null references turns (id) on delete cascade,
    place   integer     not null,
    at      timestamptz not null default now(),
    words   text        not null,                          -- plain text, without secrets
    output  text,                                          -- its beginning and its end, without secrets; null: none is kept
    primary key (turn_id, place)
);
create index steps_by_time on steps (at);

-- The last check of a branch that work is compared with: what failed there before, and which tests are new.
create table base_checks (
    platform      text     not null,
    repository_id bigint   not null,
    branch        text     not null,
    commit        text     not null,
    script        text     not null,                        -- the digest of what ran
    failure       text,                                     -- a clause; null: it passed
    passed        text[]   not null,                        -- the names of tests in its reports
    failed        text[]   not null,
    primary key (platform, repository_id, branch),
    foreign key (platform, repository_id) references codebases (platform, repository_id) on delete cascade
);

-- The worktrees in which a turn waits or runs. One may occur more than once.
create view worktree_busy as select worktree_id from turns where state in ('queued', 'running');

-- The branch to which no turn of a thread has switched the thread's worktree yet; null: none is pending. A turn that
-- ended before the switch leaves it to the next one.
create view pending_switches as
select c.id as conversation_id, (
    select t.switch_to from turns t
    where t.conversation_id = c.id and t.worktree_id = c.worktree_id and t.switch_to is not null
      and not exists (select from turns s
                      where s.conversation_id = c.id and s.worktree_id = c.worktree_id and s.head_before is not null)
    order by t.id desc limit 1) as switch_to
from conversations c;

-- What each request that began has cost, as far as that is known: null where its agent told nothing. Every sum is of
-- this. Without an agent it costs nothing.
create view turn_costs as
select id as turn_id, conversation_id, requested_by_id, queue_platform as platform, queue_repository_id as repository_id,
       state, cost_usd, tokens, cost_usd is null as untold, finished_at
from turns where started_at is not null and needs_agent;

-- A request counts for the day (UTC) on which it ended; until then for today.
create function costs_on(day date) returns setof turn_costs language sql stable as $$
    select * from turn_costs
    where finished_at >= day::timestamp at time zone 'UTC' and finished_at < (day + 1)::timestamp at time zone 'UTC'
    union all
    select * from turn_costs where state in ('queued', 'running') and day = (now() at time zone 'UTC')::date
$$;
