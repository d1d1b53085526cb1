-- What GitHub sends, and what was missed.

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
    stalls       smallint    not null default 0,           -- how often the worker that decided it died
    error        text,
    turn_id      bigint                                    -- what became of it, where an operator asked for a worktree
);
-- The bot compresses bodies itself: not every server has lz4, and pglz costs more than all the rest of a delivery.
alter table deliveries alter column body set storage external;
create index deliveries_by_state on deliveries (state, seq);
create index deliveries_not_ignored on deliveries (seq) where state <> 'ignored';
create index deliveries_by_repository on deliveries (lower(split_part(conversation, '#', 1)), seq);
-- Every hour what is older than its retention is deleted. Rows come in the order of time: brin costs them nothing.
create index deliveries_with_body on deliveries (received_at) where body is not null;
create index deliveries_by_time on deliveries using brin (received_at);

-- One comment can arrive under two GUIDs: what was acted on is remembered by what it is, for a year.
create table effects (
    key     bytea       primary key,
    seen_at timestamptz not null default now()
);
create index effects_by_time on effects using brin (seen_at);

-- Every name that a worker has answered to, for receive, which ignores comments without one. Empty: the name is not
-- known, and every comment is decided on.
create table bot_names (name text primary key);

-- How far GitHub's logs of deliveries were compared with what was received.
create table recoveries (
    source      text        primary key,                   -- `app`, or platform/repository id
    seen_until  timestamptz not null,                      -- by GitHub's clock: the newest that was compared
    compared_at timestamptz,                               -- when the source was last compared to its end
    log_hook    bigint,                                    -- where the reading of a long log goes on: the webhook,
    log_cursor  text,                                      -- GitHub's name of the next page,
    log_newest  timestamptz,                               -- and the newest delivery that was read
    tried_at    timestamptz,                               -- sources are compared in turn, also where one cannot be read
    held_until  timestamptz,                               -- none is read before: for GitHub's limits, or it was just read
    problem     text                                       -- what is not compared yet, or stays missed
);

-- What the inbox lacks of a source, until it is fetched.
create table missed_deliveries (
    source text,
    guid   text,
    hook   bigint      not null,
    log_id bigint      not null,
    event  text        not null,
    at     timestamptz not null,
    tries  integer     not null default 0,                 -- how often GitHub could not show it
    primary key (source, guid)
);

-- What a repository asks again and again: the entries `[[standing]]` of its `.threadtree/config.toml`, as the default branch
-- had them last. A time that is due becomes a delivery, once.
create table standing (
    id            bigint      generated always as identity primary key,
    platform      text        not null,
    repository_id bigint      not null,
    key           text        not null,                    -- of what it asks, for whom, and when: another one is a new entry
    entry         jsonb       not null,                    -- as in the file
    line          integer     not null,                    -- where it begins there
    first_seen_at timestamptz not null,                    -- an interval begins then
    due_at        timestamptz,                             -- the next time; null: the file pauses all
    last_guid     text,                                    -- the delivery of the last time
    issues        integer[]   not null default '{}',       -- the issues that the bot opened for it, the newest last
    opening_at    timestamptz,                             -- the time for which GitHub was asked to open one
    problem       text,                                    -- why it asks nothing, for people; they were told
    failed        boolean     not null default false,      -- `problem` is three failures in a row: no time counts
    unique (platform, repository_id, key),
    foreign key (platform, repository_id) references codebases (platform, repository_id)
);
create index standing_due on standing (due_at) where due_at is not null;
