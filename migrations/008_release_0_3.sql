-- Release 0.3.

-- The repository's own rules: `.threadtree/config.toml` of the default branch, as the node that fetched it last read it.
alter table codebases
    add column config         jsonb not null default '{}',  -- the keys that are right
    add column config_blob    text,                         -- git's name of what was read; null: there is no such file
    add column config_problem text;                         -- what is wrong in it: keys with their lines, for people

-- The agent and the model that a thread's people chose, from its next request on.
alter table conversations
    add column agent text,
    add column model text;

-- How a request is worked on. `plan`: the agent may only look, and answers with a plan. `review`: it reviews a pull request.
alter table requests
    add column mode  text not null default 'work' check (mode in ('work', 'plan', 'review')),
    add column agent text;                                  -- the agent that the request itself names

-- Cost.

alter table turns add column cost_is_part boolean not null default false; -- the agent has used more than it told the cost of

-- With all that is summed over days, which reads no rows then.
drop index turns_by_end;
create index turns_by_end on turns (finished_at)
    include (id, state, started_at, cost_usd, cost_is_part, tokens, queue_platform, queue_repository_id, requested_by_id)
    where finished_at is not null;

-- What each request that began has cost, as far as that is known: null where its agent told nothing. Every sum is of this.
create view turn_costs as
select id as turn_id, conversation_id, requested_by_id, queue_platform as platform, queue_repository_id as repository_id,
       state, cost_usd, tokens, cost_usd is null or cost_is_part as untold, finished_at
from turns where started_at is not null;

-- A request counts for the day (UTC) on which it ended; until then for today.
create function costs_on(day date) returns setof turn_costs language sql stable as $$
    select * from turn_costs
    where finished_at >= day::timestamp at time zone 'UTC' and finished_at < (day + 1)::timestamp at time zone 'UTC'
    union all
    select * from turn_costs where state in ('queued', 'running') and day = (now() at time zone 'UTC')::date
$$;

-- Plans.

-- Messages to a running agent.

-- Checks.

-- Reviews.
