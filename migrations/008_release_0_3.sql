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

alter table requests
    add column plan_of     bigint,                          -- the turn whose plan this carries out as it was shown
    add column by_outsider boolean not null default false;  -- of a plan: somebody without write access has a say in it

-- Messages to a running agent.

-- Checks.

-- Reviews.
alter table turns
    add column reviewed_head text,                          -- the commit of the pull request that the turn reviewed
    add column review        text;                          -- JSON: its remarks on lines, and which earlier ones are mended
alter table outbox
    add column review        text;                          -- JSON: the comment goes as a review with these remarks
