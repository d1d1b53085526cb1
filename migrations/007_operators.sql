-- What operators ask of nodes, and the record of what people did.

-- What an operator asks of a whole node, of an orphan on it, or of a rescue there; a job of the node carries it out.
create table operations (
    id           bigint      generated always as identity primary key,
    node         text        not null references nodes (id),
    kind         text        not null check (kind in ('prune', 'repair', 'remove', 'restore', 'drop')),
    details      jsonb       not null default '{}',        -- what exactly is asked
    requested_by text        not null,
    state        text        not null default 'queued' check (state in ('queued', 'running', 'done', 'failed')),
    outcome      text,                                     -- for people, once it ended
    report       jsonb,                                    -- of a prune or a repair, once it ended
    turn_id      bigint      references turns (id),        -- that goes on with it, once it ended
    created_at   timestamptz not null default now(),
    finished_at  timestamptz,
    check ((state in ('queued', 'running')) = (finished_at is null)),
    check ((finished_at is null) = (outcome is null))
);
create index operations_unfinished on operations (id) where finished_at is null;
create index operations_ended on operations (finished_at) where finished_at is not null;
create index operations_by_turn on operations (turn_id) where turn_id is not null;

-- What people did beside asking the agent, written in the transaction that does it.
create table audit (
    id         bigint      generated always as identity primary key,
    at         timestamptz not null default now(),
    person     text        not null,                       -- a login, `admin-token`, or `command line (USER)`
    channel    text        not null check (channel in ('dashboard', 'API', 'command line', 'thread')),
    action     text        not null,                       -- in the words of the command: `reset`, `stop all`
    target     text        not null,                       -- what it was done to, for people
    codebase   text,                                       -- owner/name of its repository then; null: of none or several
    details    jsonb       not null default '{}',          -- what else was asked
    turn       bigint,                                     -- what carries it out,
    operations bigint[]    not null default '{}',          -- or these of nodes,
    delivery   text,                                       -- or what becomes of this
    outcome    text                                        -- where nothing carries it out later
);
create index audit_by_time on audit (at);

-- Whose account a login of DASHBOARD_OPERATORS or DASHBOARD_VIEWERS is: that which signed in with it first.
create table signed_in (
    login     text   primary key,                          -- in lower case
    person_id bigint not null                              -- GitHub's id of the account
);

-- Counters that no other row can provide: each process adds its own, so that all report the same.
create table counters (
    name  text             not null,
    label text             not null,
    value double precision not null,
    primary key (name, label)
);
