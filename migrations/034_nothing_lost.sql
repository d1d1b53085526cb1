-- When GitHub was last asked whether a thread is still open, of which nothing was heard.
alter table conversations add column checked_at timestamptz;

-- Sources are compared in turn, also where one cannot be read.
alter table recoveries add column tried_at timestamptz;

-- The answers to a comment that belong to no turn: it was acted on.
create index outbox_replies on outbox (conversation_id, target_kind, target_id)
    where kind = 'comment' and turn_id is null;

-- How often the worker that decided the delivery died.
alter table deliveries add column stalls smallint not null default 0;

-- Why the last attempt to remove the worktree failed.
alter table worktrees add column removal_error text;
create index worktrees_not_removed on worktrees (node) where removal_error is not null;
