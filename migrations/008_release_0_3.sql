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

-- Messages to a running agent.

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
