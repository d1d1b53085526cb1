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

-- Plans.

-- Messages to a running agent. A request that is asked while a turn of its thread runs may be told to the agent of that
-- turn; then its own turn ends without a run. Until the agent has it, it waits in the queue like any other.
alter table requests
    add column joins   bigint,                              -- the turn that ran when this was asked, and may be told it
    add column is_told boolean not null default false;      -- the agent of that turn was told it, or is told it now
create index requests_joining on requests (joins) where joins is not null;

-- Checks.

-- Reviews.
