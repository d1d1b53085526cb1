-- What is asked of worktrees beside turns, what was rescued from them, and what lies among them.

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

-- What is asked of a worktree itself, in line with its turns: those up to `after_turn` go first, later ones wait. Or of
-- a whole node, or of an orphan on it.
create table operations (
    id              bigint      generated always as identity primary key,
    worktree_id     bigint      references worktrees (id), -- null: of a node
    node            text        references nodes (id),     -- null: of a worktree
    kind            text        not null check (kind in ('create', 'reset', 'restore', 'remove', 'pull-request', 'describe', 'drop',
                                                         'prune', 'repair')),
    details         jsonb       not null default '{}',     -- what exactly is asked of a node
    conversation_id bigint      references conversations (id), -- whose thread hears of it; null: an operator asked
    source_kind     text        check (source_kind in ('comment', 'review-comment', 'review', 'issue', 'pull')),
    source_id       bigint,
    turn_id         bigint      references turns (id),     -- the turn that it goes before and whose reply tells of it
    rescue_id       bigint,                                -- to drop, or to restore in the worktree its thread has now
    draft           boolean,                               -- of a pull request
    title           text,                                  -- of a pull request; null: the bot finds one
    requested_by    text        not null,
    asked_at        timestamptz not null,                  -- by GitHub's clock, where it was asked there
    after_turn      bigint      not null default 0,
    state           text        not null default 'queued' check (state in ('queued', 'running', 'done', 'failed')),
    outcome         text,                                  -- for people, once it ended; before, while its set-up
                                                           -- script runs, the Markdown of what was done
    stopping        boolean     not null default false,    -- its set-up script is to end
    report          jsonb,                                 -- of a prune or a repair, once it ended
    reply_id        bigint      references outbox (id) on delete set null, -- the comment that says it is queued, then its outcome
    created_at      timestamptz not null default now(),
    finished_at     timestamptz,
    check ((worktree_id is null) = (node is not null)),
    check (node is null or kind in ('prune', 'repair', 'remove', 'restore')),
    check (worktree_id is null or kind not in ('prune', 'repair')),
    check ((conversation_id is null) = (source_kind is null) or kind = 'describe'),
    check (turn_id is null or conversation_id is null),
    check ((kind = 'pull-request') = (draft is not null)),
    check (kind <> 'drop' or rescue_id is not null),
    check (kind in ('drop', 'restore') or rescue_id is null),
    check ((state in ('queued', 'running')) = (finished_at is null)),
    check (state in ('queued', 'running') or outcome is not null)
);
create unique index operations_one_running_per_worktree on operations (worktree_id) where state = 'running';
create index operations_unfinished on operations (worktree_id, id) where state in ('queued', 'running');
create index operations_ended on operations (finished_at) where finished_at is not null;
create index operations_by_worktree on operations (worktree_id);
create index operations_by_turn on operations (turn_id) where turn_id is not null;
create index operations_by_reply on operations (reply_id) where reply_id is not null;

-- What lies among the worktrees and belongs to none: its age counts from when it was first seen. No worktree has its id.
create table orphans (
    node    text        not null,
    path    text        not null,
    seen_at timestamptz not null default now(),
    id      bigint      not null unique default nextval(pg_get_serial_sequence('worktrees', 'id')),
    primary key (node, path)
);
