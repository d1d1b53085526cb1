-- The rows of DESIGN.md's five words, and the two queues beside them (turns, outbox).
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

create table nodes (
    name         text        primary key,
    started_at   timestamptz not null default now(),
    heartbeat_at timestamptz not null default now()
);

create table worktrees (
    id            bigint      generated always as identity primary key,
    platform      text        not null,
    repository_id bigint      not null,
    node          text        not null references nodes (name),
    path          text        not null,
    branch        text,                                  -- null: detached, or not yet made
    base_branch   text,                                  -- what the branch is compared with
    -- What the checkout starts from, decided with the first request.
    start_kind    text        not null check (start_kind in ('issue', 'head', 'detached')),
    start_number  integer     not null,
    start_ref     text,
    start_sha     text,
    state         text        not null default 'reserved'
                  check (state in ('reserved', 'ready', 'removing', 'removed', 'lost')),
    claim         uuid,                                  -- held by whoever removes it
    worker        text,                                  -- whose process lock tells whether that is still going on
    created_at    timestamptz not null default now(),
    updated_at    timestamptz not null default now(),
    foreign key (platform, repository_id) references codebases (platform, repository_id),
    check (start_kind = 'issue' or start_ref is not null)
);
create index worktrees_by_path on worktrees (path);
-- One live row for a directory: two rows that both think they own it would be two agents in one checkout.
create unique index worktrees_one_live_per_path on worktrees (node, path) where state in ('reserved', 'ready');
create index worktrees_by_codebase on worktrees (platform, repository_id) where state in ('reserved', 'ready', 'removing');

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
    worktree_id   bigint      references worktrees (id),
    created_at    timestamptz not null default now(),
    updated_at    timestamptz not null default now(),
    unique (platform, repository_id, number),
    foreign key (platform, repository_id) references codebases (platform, repository_id)
);
create index conversations_by_worktree on conversations (worktree_id) where worktree_id is not null;

create table sessions (
    id                   bigint      generated always as identity primary key,
    conversation_id      bigint      not null references conversations (id),
    agent                text        not null,
    assistant_session_id text,                            -- the agent's own name for it; null until it answered
    active               boolean     not null default true,
    created_at           timestamptz not null default now(),
    last_active_at       timestamptz not null default now(),
    cost_usd             double precision not null default 0, -- what agents tell is the sum over a session
    ended_at             timestamptz,
    end_reason           text check (end_reason in ('reset-requested', 'conversation-closed', 'worktree-removed',
                         'worktree-reset', 'worktree-missing', 'agent-lost', 'node-lost')),
    check (active = (ended_at is null)),
    check ((ended_at is null) = (end_reason is null))
);
create unique index sessions_one_active_per_conversation on sessions (conversation_id) where active;

create table turns (
    id                bigint      generated always as identity primary key,
    conversation_id   bigint      not null references conversations (id),
    worktree_id       bigint      references worktrees (id),
    session_id        bigint      references sessions (id) on delete set null,
    state             text        not null default 'queued'
                      check (state in ('queued', 'running', 'done', 'failed', 'stopped', 'timed-out', 'interrupted', 'refused')),
    reason            text,                                -- one sentence for people, set with every end but done
    -- What was asked, by whom, and where the answer belongs.
    request           text        not null,
    request_hash      bytea       not null,
    requested_by      text        not null,
    requested_by_id   bigint      not null,
    asked_at          timestamptz not null,                -- GitHub's time of the request, not ours
    source_kind       text        not null check (source_kind in ('comment', 'review-comment', 'review', 'issue', 'pull')),
    source_id         bigint,                              -- comment or review id; null for the thread's own body
    review_id         bigint,                              -- the review whose comments are one turn
    pinned_sha        text,                                -- head of a fork's pull request when it was asked
    context           text        not null default '',     -- thread title and what was quoted, for the prompt
    notices           text[]      not null default '{}',   -- what the reply must say besides the answer
    -- The claim: every effect of a run is written where claim = token.
    claim             uuid,
    worker            text,                                -- whose process lock tells whether the run is alive
    stop_requested_at timestamptz,
    stop_reason       text,
    cut_offs          integer     not null default 0,      -- crashes survived; the second ends the turn
    resuming          boolean     not null default false,  -- was cut off: the agent is told so
    head_before       text,                                -- the commit the run began at: what it changed is told from there
    answer            text,                                -- set once the agent is done: a resumed run does not ask again
    cost_usd          double precision,                    -- of this turn alone, where the agent tells it
    tokens            bigint,
    created_at        timestamptz not null default now(),
    started_at        timestamptz,
    finished_at       timestamptz,
    check ((state = 'running') = (claim is not null)),
    check ((state in ('queued', 'running')) = (finished_at is null)),
    check (state in ('queued', 'running', 'done') or reason is not null)
);
create unique index turns_one_running_per_worktree on turns (worktree_id) where state = 'running';
create index turns_unfinished_by_conversation on turns (conversation_id, id) where state in ('queued', 'running');
create index turns_unfinished_by_worktree on turns (worktree_id, id) where state in ('queued', 'running');
create index turns_by_conversation on turns (conversation_id, id);
create index turns_by_person on turns (requested_by_id, created_at);
create unique index turns_one_per_review on turns (conversation_id, review_id) where review_id is not null;

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
    error        text
);
create index deliveries_by_state on deliveries (state, seq);

-- One comment can arrive under two GUIDs: what was acted on is remembered by what it is, for a year.
create table effects (
    key     bytea       primary key,
    seen_at timestamptz not null default now()
);

-- What GitHub is to show. A row states the wish (content, version); the sender makes GitHub agree (sent_version).
create table outbox (
    id              bigint      generated always as identity primary key,
    lane            text        not null,                  -- writes are serial per lane: an installation, or the token
    conversation_id bigint      not null references conversations (id),
    kind            text        not null check (kind in ('reaction', 'comment')),
    turn_id         bigint      references turns (id),
    part            integer,                               -- 1 is the turn's tracking comment
    urgency         smallint    not null,                  -- 0 reactions and command answers, 1 finals, 2 progress
    target_kind     text        not null check (target_kind in ('comment', 'review-comment', 'review', 'issue', 'pull')),
    target_id       bigint,                                -- comment id; null: the thread itself
    content         text        not null,                  -- Markdown, or the reaction's name
    version         integer     not null default 1,
    sent_version    integer     not null default 0,
    waits_for       bigint      references outbox (id),    -- its comment's address is put into this content
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
create index outbox_to_send on outbox (lane, urgency, id) where state in ('waiting', 'sending');
create index outbox_posted on outbox (lane, posted_at);

-- A rate limit of GitHub's holds a whole lane, whoever sends next and after whatever restart.
create table lanes (
    lane       text        primary key,
    held_until timestamptz not null
);
