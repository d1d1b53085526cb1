-- The bot's pull requests, and what became of them.

-- The pull requests that the bot opened. What it writes there stays the bot's until a person changes it.
create table pull_requests (
    platform      text        not null,
    repository_id bigint      not null,
    number        integer     not null,
    branch        text        not null,
    closes        integer     not null,                    -- the issue that it was opened for
    titles        text[]      not null,                    -- all that the bot gave it; another one is a person's
    texts         text[]      not null,                    -- SHA-256 of each description that the bot wrote between its marks
    told          boolean     not null default false,      -- people were told that the description is theirs
    check_at      timestamptz default now() + interval '1 minute', -- ask GitHub then about conflicts; null: it is closed
    in_conflict   boolean     not null default false,      -- as GitHub told last
    conflict_told text,                                    -- the head of which people were told so
    primary key (platform, repository_id, number),
    foreign key (platform, repository_id) references codebases (platform, repository_id)
);
create index pull_requests_by_branch on pull_requests (platform, repository_id, branch);
create index pull_requests_to_check on pull_requests (check_at) where check_at is not null;

-- What became of a pull request to whose branch the bot pushed; written when it is closed, gone when it is reopened.
create table outcomes (
    id            bigint      generated always as identity unique,
    platform      text        not null,
    repository_id bigint      not null,
    number        integer     not null,
    branch        text        not null,
    opened_at     timestamptz not null,
    closed_at     timestamptz not null,
    merged        boolean     not null,
    rewritten     boolean     not null,                    -- people pushed after the bot's last push
    reverted_by   integer,                                 -- the pull request that took it back
    primary key (platform, repository_id, number),
    foreign key (platform, repository_id) references codebases (platform, repository_id)
);
create index outcomes_merged on outcomes (closed_at) where merged;
