-- What was rescued from worktrees, what lies among them, and what operators ask of nodes.

-- Work that was in the way of a removal or a reset: a commit under `ref` in the clone, and where a commit cannot hold
-- all of it the directory itself, as `kept` names it in DATA_DIR/kept. On the node of its worktree.
create table rescues (
    id            bigint      generated always as identity primary key,
    worktree_id   bigint      not null references worktrees (id),
    ref           text,
    kept          text,
    removal       text        check (removal in ('closed', 'command', 'retention', 'purged', 'lost')), -- null: no removal
    conversations integer[]   not null,                    -- the threads that used the worktree then
    branch        text,                                    -- of the worktree; null: detached
    files         integer     not null default 0,          -- uncommitted ones
    commits       integer     not null default 0,          -- that nobody had pushed
    bytes         bigint      not null default 0,
    created_at    timestamptz not null default now(),
    restored_at   timestamptz,
    check (ref is not null or kept is not null)
);
create unique index rescues_by_ref on rescues (worktree_id, ref) where ref is not null;
create unique index rescues_by_kept on rescues (kept) where kept is not null;
create index rescues_by_worktree on rescues (worktree_id, created_at);
create index rescues_by_conversation on rescues using gin (conversations);

-- What lies among the worktrees and belongs to none: its age counts from when it was first seen. No worktree has its id.
create table orphans (
    node    text        not null,
    path    text        not null,
    seen_at timestamptz not null default now(),
    id      bigint      not null unique default nextval(pg_get_serial_sequence('worktrees', 'id')),
    primary key (node, path)
);

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
