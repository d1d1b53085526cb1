-- The rows of DESIGN.md's five words, and what waits: turns for an agent, deliveries and writes for the engine's jobs.
-- What must never be false is a constraint or a partial unique index here, not an `if` in the code.

create table codebases (
    platform        text        not null,                -- host of the GitHub server
    repository_id   bigint      not null,                -- GitHub's numeric id: survives renames, is never reclaimed
    owner           text        not null,
    name            text        not null,
    folder          text        not null unique,         -- owner/name at first contact; a rename does not move the clone
    default_branch  text,
    installation_id bigint,                              -- null where a personal token is used
    created_at      timestamptz not null default now(),
    updated_at      timestamptz not null default now(),
    primary key (platform, repository_id)
);

-- A node is its DATA_DIR: the id is stored there, and the name is a label that may change.
create table nodes (
    id               text        primary key,
    name             text        not null default '',
    started_at       timestamptz not null default now(),
    heartbeat_at     timestamptz not null default now(),
    place            text,                               -- where its DATA_DIR is, while a process of it runs
    draining         boolean     not null default false, -- its worker was asked to end: alive, but gets no new threads
    disk             jsonb       not null default '{}',  -- bytes by kind, as its last round of housekeeping measured them
    kept             jsonb       not null default '[]',  -- directories kept whole: name, bytes, since when; measured with `disk`
    disk_measured_at timestamptz
);

create table worktrees (
    id            bigint      generated always as identity primary key,
    platform      text        not null,
    repository_id bigint      not null,
    node          text        not null references nodes (id),
    path          text        not null,                  -- relative to the node's DATA_DIR
    branch        text,                                  -- null: detached, or not yet made
    base_branch   text,                                  -- what the branch is compared with
    -- What the checkout starts from, decided with the first request.
    start_kind    text        not null check (start_kind in ('issue', 'head', 'detached')),
    start_number  integer     not null,
    start_ref     text,
    start_sha     text,
    setup_done    boolean     not null default false,    -- `.threadtree/setup` ran in this checkout
    ask_closes    boolean     not null default false,    -- GitHub did not say which issues its pull request closes
    state         text        not null default 'reserved'
                  check (state in ('reserved', 'ready', 'removing', 'removed', 'lost')),
    is_live       boolean     not null generated always as (state in ('reserved', 'ready')) stored,
    -- Why it goes or went. 'purged': its conversations keep it, and the next turn makes it again at the same path.
    -- 'lost': its node was silent, was replaced, and removes it after a rescue once it is back.
    removal       text        check (removal in ('closed', 'command', 'retention', 'purged', 'lost')),
    removal_error text,                                  -- why the last attempt to remove it failed
    lost_threads  integer[]   not null default '{}',     -- numbers of the threads it had when it was lost: for its rescue
    removal_began boolean     not null default false,    -- no request calls it off any more
    created_at    timestamptz not null default now(),
    updated_at    timestamptz not null default now(),
    foreign key (platform, repository_id) references codebases (platform, repository_id),
    check (start_kind = 'issue' or start_ref is not null),
    check (start_kind <> 'detached' or start_sha is not null)
);
create index worktrees_by_path on worktrees (path);
-- One live row for a directory: two rows that both think they own it would be two agents in one checkout.
create unique index worktrees_one_live_per_path on worktrees (node, path) where is_live;
create index worktrees_by_codebase on worktrees (platform, repository_id)
    where is_live or state = 'removing' or (state = 'removed' and removal = 'purged');
create index worktrees_by_activity on worktrees (node, updated_at) where is_live;
-- What is being removed, or is lost and not let go yet: a turn waits while it is in the way.
create index worktrees_leaving on worktrees (node, path) where state in ('removing', 'lost');
create index worktrees_removed on worktrees (node, updated_at) where state = 'removed';
create index worktrees_not_removed on worktrees (node) where removal_error is not null;

create table conversations (
    id            bigint      generated always as identity primary key,
    platform      text        not null,
    repository_id bigint      not null,
    number        integer     not null,
    kind          text        not null check (kind in ('issue', 'pull')),
    title         text        not null default '',
    state         text        not null default 'open' check (state in ('open', 'closed')),
    closed_at     timestamptz,
    state_at      timestamptz not null default '-infinity', -- GitHub's time of the last close or reopen acted on
    pull_request  integer,                                -- the open pull request of its branch, as it was last seen
    worktree_id   bigint      references worktrees (id),
    created_at    timestamptz not null default now(),
    updated_at    timestamptz not null default now(),
    unique (platform, repository_id, number),
    foreign key (platform, repository_id) references codebases (platform, repository_id)
);
create index conversations_by_repository on conversations (platform, repository_id, id);
create index conversations_by_worktree on conversations (worktree_id) where worktree_id is not null;

create table sessions (
    id                   bigint      generated always as identity primary key,
    conversation_id      bigint      not null references conversations (id),
    agent                text        not null,
    assistant_session_id text,                            -- the agent's own name for it; null until it answered
    active               boolean     not null default true,
    created_at           timestamptz not null default now(),
    last_active_at       timestamptz not null default now(),
    cost_usd             double precision not null default 0, -- agents report the sum over a session
    ended_at             timestamptz,
    end_reason           text check (end_reason in ('reset-requested', 'conversation-closed', 'worktree-removed',
                         'worktree-reset', 'worktree-missing', 'agent-lost', 'agent-changed', 'node-lost')),
    check (active = (ended_at is null)),
    check ((ended_at is null) = (end_reason is null))
);
create unique index sessions_one_active_per_conversation on sessions (conversation_id) where active;
-- The home of an agent is deleted with the last session of its conversation.
create index sessions_by_conversation on sessions (conversation_id);
create index sessions_by_end on sessions (ended_at) where not active;

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
    check ((state = 'running') = (claim is not null)),
    check ((state in ('queued', 'running')) = (finished_at is null)),
    check (state in ('queued', 'running', 'done') or reason is not null),
    check (finished_at is not null or not expired)
);
create unique index turns_one_running_per_worktree on turns (worktree_id) where state = 'running';
-- The queue: of each repository, the oldest of its node; and the rounds of a node and of a person.
create index turns_queued on turns (queue_node, needs_agent, queue_platform, queue_repository_id, round, id) where state = 'queued';
create index turns_running on turns (queue_node) where state = 'running';
create index turns_rounds on turns (queue_node, round) where state = 'queued' and needs_agent;
create index turns_rounds_of_person on turns (requested_by_id, round)
    where state in ('queued', 'running') and needs_agent;
create index turns_unfinished_by_conversation on turns (conversation_id, id) where state in ('queued', 'running');
create index turns_unfinished_by_worktree on turns (worktree_id, id) where state in ('queued', 'running');
create index turns_unfinished_alone on turns (worktree_id, id)
    where state in ('queued', 'running') and not needs_agent;
create unique index turns_by_conversation on turns (conversation_id, id);
create index turns_by_person on turns (requested_by_id, created_at);
create index turns_by_pushed_branch on turns (pushed_to, id) where pushed_to is not null;
-- With all that is summed over days, which reads no rows then.
create index turns_by_end on turns (finished_at)
    include (state, started_at, cost_usd, tokens, queue_platform, queue_repository_id) where finished_at is not null;
create index turns_by_repository on turns (queue_platform, queue_repository_id, id);
create index turns_not_done on turns (state, id) where state not in ('queued', 'running', 'done');
create index turns_with_texts on turns (finished_at) where finished_at is not null and not expired;
-- For the deletion of sessions and worktrees.
create index turns_by_session on turns (session_id) where session_id is not null;
create index turns_by_worktree on turns (worktree_id) where worktree_id is not null;
-- What waits is a small part of a long history. It is analyzed soon after it changed, not after a tenth of all rows has,
-- and dead entries are removed, which are in the way of what waits.
alter table turns set (autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000,
                       autovacuum_vacuum_scale_factor = 0.02);

-- A time in ISO 8601 with its offset means the same in every session, unlike other texts.
create function threadtree_time(iso text) returns timestamptz language sql immutable strict as $$ select iso::timestamptz $$;

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

-- What the agent of a turn did, one line each, and what came of it.
create table steps (
    turn_id bigint      not null references turns (id) on delete cascade,
    place   integer     not null,
    at      timestamptz not null default now(),
    words   text        not null,                          -- plain text, without secrets
    output  text,                                          -- its beginning and its end, without secrets; null: none is kept
    primary key (turn_id, place)
);

create table deliveries (
    seq          bigint      generated always as identity unique,
    guid         text        primary key,
    event        text        not null,
    action       text,
    conversation text,                                     -- owner/repo#42, for people
    lock_key     text,                                     -- platform/repository id#number: what decide is serial by
    state        text        not null check (state in ('received', 'done', 'ignored', 'failed', 'dead')),
    body         bytea,                                    -- the raw JSON; null once its retention ended or when ignored
    received_at  timestamptz not null default now(),
    finished_at  timestamptz,
    attempts     integer     not null default 0,
    stalls       smallint    not null default 0,           -- how often the worker that decided it died
    error        text,
    turn_id      bigint                                    -- what became of it, where an operator asked for a worktree
);
-- The bot compresses bodies itself: not every server has lz4, and pglz costs more than all the rest of a delivery.
alter table deliveries alter column body set storage external;
create index deliveries_by_state on deliveries (state, seq);
create index deliveries_not_ignored on deliveries (seq) where state <> 'ignored';
create index deliveries_by_repository on deliveries (lower(split_part(conversation, '#', 1)), seq);
-- Every hour what is older than its retention is deleted. Rows come in the order of time: brin costs them nothing.
create index deliveries_with_body on deliveries (received_at) where body is not null;
create index deliveries_by_time on deliveries using brin (received_at);

-- One comment can arrive under two GUIDs: what was acted on is remembered by what it is, for a year.
create table effects (
    key     bytea       primary key,
    seen_at timestamptz not null default now()
);
create index effects_by_time on effects using brin (seen_at);

-- Every name that a worker has answered to, for receive, which ignores comments without one. Empty: the name is not
-- known, and every comment is decided on.
create table bot_names (name text primary key);

-- How far GitHub's logs of deliveries were compared with what was received.
create table recoveries (
    source      text        primary key,                   -- `app`, or platform/repository id
    seen_until  timestamptz not null,                      -- by GitHub's clock: the newest that was compared
    compared_at timestamptz,                               -- when the source was last compared to its end
    log_hook    bigint,                                    -- where the reading of a long log goes on: the webhook,
    log_cursor  text,                                      -- GitHub's name of the next page,
    log_newest  timestamptz,                               -- and the newest delivery that was read
    tried_at    timestamptz,                               -- sources are compared in turn, also where one cannot be read
    problem     text                                       -- what is not compared yet, or stays missed
);

-- What the inbox lacks of a source, until it is fetched.
create table missed_deliveries (
    source text,
    guid   text,
    hook   bigint      not null,
    log_id bigint      not null,
    event  text        not null,
    at     timestamptz not null,
    tries  integer     not null default 0,                 -- how often GitHub could not show it
    primary key (source, guid)
);

-- Work that one process does at a time, however long it takes: whoever does it renews its lease.
create table leases (
    name       text        primary key,
    holder     uuid        not null,
    held_until timestamptz not null
);

-- What GitHub is to show. A row states the wish (content, version); the sender makes GitHub agree (sent_version).
create table outbox (
    id              bigint      generated always as identity primary key,
    writer          text        not null,                  -- an App's installation, or the token: its writes are serial
    conversation_id bigint      not null references conversations (id),
    kind            text        not null check (kind in ('reaction', 'comment', 'pull-request')),
    turn_id         bigint      references turns (id),
    part            integer,                               -- 1 is the turn's tracking comment
    urgency         smallint    not null,                  -- 0 reactions and command answers, 1 finals, 2 progress, 3 😕
    asked_by        bigint,                                -- GitHub's id of the person; null: nobody, or nobody known
    round           integer     not null default 0,        -- a person has ten writes in each round; earlier rounds go first
    target_kind     text        not null check (target_kind in ('comment', 'review-comment', 'review', 'issue', 'pull')),
    target_id       bigint,                                -- comment id; null: the thread itself
    content         text        not null,                  -- Markdown, or the reaction's name
    version         integer     not null default 1,
    sent_version    integer     not null default 0,
    waits_for       bigint      references outbox (id) on delete set null, -- its comment takes the place of this one, which goes then
    state           text        not null default 'waiting' check (state in ('waiting', 'sending', 'sent', 'failed')),
    due_at          timestamptz not null default now(),
    sending_at      timestamptz,
    posted_at       timestamptz,                           -- when it was created on GitHub: what the write limits count
    comment_id      bigint,
    comment_url     text,
    attempts        integer     not null default 0,
    error           text,
    created_at      timestamptz not null default now(),
    check ((turn_id is null) = (part is null) or kind = 'reaction'),
    check (kind = 'comment' or sent_version <= 1)
);
create unique index outbox_one_comment_per_part on outbox (turn_id, part) where kind = 'comment' and turn_id is not null;
create unique index outbox_one_reaction on outbox (conversation_id, target_kind, coalesce(target_id, 0), content) where kind = 'reaction';
create index outbox_to_send on outbox (writer, round, urgency, id) where state in ('waiting', 'sending');
create index outbox_due on outbox (writer, due_at) where state in ('waiting', 'sending');
create index outbox_rounds_of_person on outbox (writer, asked_by, round) where state in ('waiting', 'sending');
-- The answers of a conversation that wait: a later turn's goes after an earlier turn's, whatever their rounds.
create index outbox_answers on outbox (conversation_id, turn_id) where urgency = 1 and state in ('waiting', 'sending');
-- What GitHub's limits count: what was posted in the last hour, and what was sent and has no answer.
create index outbox_posted on outbox (writer, posted_at);
create index outbox_without_answer on outbox (writer, sending_at) where posted_at is null and sending_at is not null;
-- The answers to a comment that belong to no turn: it was acted on.
create index outbox_replies on outbox (conversation_id, target_kind, target_id) where kind = 'comment' and turn_id is null;
create index outbox_ended on outbox (created_at) where state in ('sent', 'failed');
create index outbox_by_turn on outbox (turn_id) where turn_id is not null;
create index outbox_waiting_for on outbox (waits_for) where waits_for is not null;
alter table outbox set (autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000,
                        autovacuum_vacuum_scale_factor = 0.02);

-- The pull requests that the bot opened. What it writes there stays the bot's until a person changes it.
create table pull_requests (
    platform      text        not null,
    repository_id bigint      not null,
    number        integer     not null,
    branch        text        not null,
    closes        integer     not null,                    -- the issue that it was opened for
    titles        text[]      not null,                    -- all that the bot gave it; another one is a person's
    texts         text[]      not null,                    -- SHA-256 of each description that the bot wrote between its marks
    told          boolean     not null default false,      -- people were told that the description is theirs
    primary key (platform, repository_id, number),
    foreign key (platform, repository_id) references codebases (platform, repository_id)
);
create index pull_requests_by_branch on pull_requests (platform, repository_id, branch);

-- A rate limit of GitHub's holds all writes of a writer, whoever sends next and after whatever restart.
create table writers (
    writer     text        primary key,
    held_until timestamptz not null
);
