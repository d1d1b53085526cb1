-- Release 0.3.

-- The repository's own rules: `.threadtree/config.toml` of the default branch, as the node that fetched it last read it.
alter table codebases
    add column config         jsonb not null default '{}',  -- the keys that are right
    add column config_blob    text,                         -- git's name of what was read; null: there is no such file
    add column config_problem text;                         -- what is wrong in it: keys with their lines, for people

-- Whoever recovers holds a lock of its session instead; a process of release 0.2 may still run.
comment on table leases is 'unused since release 0.3';

-- The agent and the model that a thread's people chose, from its next request on.
alter table conversations
    add column agent text,
    add column model text;

-- The comments of a conversation within an hour: MAX_COMMENTS_PER_HOUR.
create index outbox_comments on outbox (conversation_id, posted_at) where kind = 'comment';

-- Cost.

-- With all that is summed over days, which reads no rows then.
drop index turns_by_end;
create index turns_by_end on turns (finished_at)
    include (id, state, started_at, needs_agent, cost_usd, tokens, queue_platform, queue_repository_id, requested_by_id)
    where finished_at is not null;

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

-- Checks.

alter table turns add column told_of_check boolean not null default false; -- its agent was told once that the check fails

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

-- Reviews.

alter table turns
    add column kept          jsonb,                         -- what its kind keeps beside the answer, such as a review's remarks
    add column description   text;                          -- of the pull request, as the agent left it
alter table outbox
    add column review        text;                          -- JSON: the comment goes as a review with these remarks

-- Conflicts with the base.

alter table pull_requests
    add column check_at      timestamptz default now() + interval '1 minute', -- ask GitHub then; null: it is closed
    add column in_conflict   boolean     not null default false,              -- as GitHub told last
    add column conflict_told text;                                            -- the head of which people were told so
create index pull_requests_to_check on pull_requests (check_at) where check_at is not null;

-- Undo.

alter table turns add column undoes bigint;                -- the turn whose changes this one took back

-- The bot mends failing checks of what it pushed.

alter table conversations add column autofix boolean;      -- what the thread's people chose; null: the repository's rule
alter table turns add column met_push boolean not null default false; -- its push merges what people pushed while it ran
create index turns_by_pushed_head on turns (pushed_head) where pushed_head is not null;

-- Outcomes.

-- What became of a pull request to whose branch the bot pushed; written when it is closed, gone when it is reopened.
create table outcomes (
    id            bigint      generated always as identity unique,
    platform      text        not null,
    repository_id bigint      not null,
    number        integer     not null,
    branch        text        not null,
    opened_at     timestamptz not null,
    closed_at     timestamptz not null,
    merged        boolean     not null,
    rewritten     boolean     not null,                    -- people pushed after the bot's last push
    reverted_by   integer,                                 -- the pull request that took it back
    primary key (platform, repository_id, number),
    foreign key (platform, repository_id) references codebases (platform, repository_id)
);

-- Agent and model are those of the last request that pushed. The cost is that of all requests on its thread or branch.
create view listed_outcomes as
select o.id as place, o.id, b.owner || '/' || b.name as codebase,
       b.owner || '/' || b.name || '#' || o.number as pull_request, o.branch,
       case when o.reverted_by is not null then 'reverted' when o.merged then 'merged' else 'closed' end as state,
       o.rewritten, b.owner || '/' || b.name || '#' || o.reverted_by as reverted_by, o.opened_at, o.closed_at,
       case when o.merged then extract(epoch from o.closed_at - o.opened_at)::float8 end as seconds_to_merge,
       work.*, o.platform, o.repository_id
from outcomes o join codebases b using (platform, repository_id) cross join lateral (
    select count(*) as turns, sum(t.cost_usd) as cost_usd, sum(t.tokens)::bigint as tokens,
           (array_agg(t.agent order by t.pushed_head is null, t.id desc))[1] as agent,
           (array_agg(t.model order by t.pushed_head is null, t.id desc))[1] as model
    from turns t
    where (t.pushed_to = o.branch and (t.queue_platform, t.queue_repository_id) = (o.platform, o.repository_id))
       or t.conversation_id = (select c.id from conversations c
                               where (c.platform, c.repository_id, c.number) = (o.platform, o.repository_id, o.number))
    ) work;
