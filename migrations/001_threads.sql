-- Repositories, machines, worktrees with what was rescued from them, threads and sessions.
-- What must never be false is a constraint or a partial unique index, not an `if` in the code.

create table codebases (
    platform        text        not null,                -- host of the GitHub server
    repository_id   bigint      not null,                -- GitHub's numeric id: survives renames, is never reclaimed
    owner           text        not null,
    name            text        not null,
    folder          text        not null unique,         -- owner/name at first contact; a rename does not move the clone
    default_branch  text,
    installation_id bigint,                              -- null where a personal token is used
    created_at      timestamptz not null default now(),
    updated_at      timestamptz not null default now(), -- when GitHub told these: of a reused name, the newest has it
    -- The repository's own rules: `.threadtree/config.toml` of the default branch, as the node that fetched it last read it.
    config          jsonb       not null default '{}',   -- the keys that are right
    config_blob     text,                                -- git's name of what was read; null: there is no such file
    config_problem  text,                                -- what is wrong in it: keys with their lines, for people
    looked_at       timestamptz not null default '-infinity', -- when the file was read for what it asks by itself
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
    had_variables boolean     not null default false,    -- programs in it were given the repository's: files may hold them
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
    -- What the thread's people chose, from its next request on.
    agent         text,
    model         text,
    autofix       boolean,                                -- failing checks are fixed; null: the repository's rule
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
    models               text[]      not null default '{}', -- those that the agent said it offers
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

-- Sessions whose context nobody gave up: a plan that was made in one can still be carried out.
create view kept_sessions as
select id from sessions where active or end_reason in ('worktree-missing', 'agent-lost', 'agent-changed', 'node-lost');

-- A thread's name for people.
create view conversation_names as
select c.id, b.owner || '/' || b.name || '#' || c.number as conversation
from conversations c join codebases b using (platform, repository_id);

-- A worktree with its repository and the numbers of the threads that use it.
create view worktree_rows as
select w.id as worktree_id, w.node, w.path, w.state as worktree_state, w.is_live, w.branch, w.base_branch,
       w.start_kind, w.start_number, w.start_ref, w.start_sha, w.ask_closes,
       w.created_at as worktree_created_at, w.updated_at as worktree_updated_at,
       array(select c.number from conversations c where c.worktree_id = w.id order by c.number) as conversations,
       w.platform, w.repository_id, b.owner, b.name, b.folder, b.default_branch, b.installation_id
from worktrees w join codebases b using (platform, repository_id);

-- A rescue with its node and its repository.
create view rescue_rows as
select r.id, r.worktree_id, r.ref, r.kept, r.removal, r.conversations, r.branch, r.files, r.commits, r.bytes,
       r.created_at, r.restored_at, w.node, w.platform, w.repository_id, b.owner || '/' || b.name as codebase, b.folder,
       n.name as node_name
from rescues r join worktrees w on w.id = r.worktree_id join codebases b using (platform, repository_id)
join nodes n on n.id = w.node;

-- What lies among the worktrees without a row, with the repository of its folder.
create view orphan_rows as
select o.id, o.node, o.path, o.seen_at, coalesce(b.owner || '/' || b.name, o.folder) as codebase,
       b.platform, b.repository_id
from (select *, split_part(path, '/', 2) || '/' || split_part(path, '/', 3) as folder from orphans) o
left join codebases b using (folder);

-- Writes what GitHub tells of a repository, and returns the folder of its clone. A rename on GitHub updates the names;
-- the folder stays (agents key their sessions by path). A reused name is another repository: its folder has the id in
-- its name. Called in a transaction of its own: it locks the row, and the repository's threads would be decided one
-- after the other.
create function threadtree_save_codebase(platform text, id bigint, owner text, name text, branch text, installation bigint)
returns text language sql as $$
    insert into codebases as b (platform, repository_id, owner, name, folder, default_branch, installation_id)
    select $1, $2, $3, $4,
           case when exists (select from codebases o
                             where o.folder = $3 || '/' || $4 and (o.platform, o.repository_id) <> ($1, $2))
                then $3 || '/' || $4 || '-' || $2::text else $3 || '/' || $4 end,
           $5, $6
    on conflict (platform, repository_id) do update
       set owner = excluded.owner, name = excluded.name, updated_at = now(),
           default_branch = excluded.default_branch, installation_id = excluded.installation_id
    returning folder
$$;
