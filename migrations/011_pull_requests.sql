-- Pull requests that the bot opens: on `/pr`, in line with the worktree's turns, or after a turn that pushed.

-- The branch on GitHub that has a turn's changes; null where it changed nothing there.
alter table turns add column pushed_to text;
create index turns_by_pushed_branch on turns (pushed_to, id) where pushed_to is not null;

alter table operations drop constraint operations_kind_check;
alter table operations add constraint operations_kind_check
    check (kind in ('create', 'reset', 'restore', 'remove', 'pull-request'));
alter table operations add column draft boolean;             -- of a pull request
alter table operations add column title text;                -- of a pull request; null: the bot finds one
alter table operations add check ((kind = 'pull-request') = (draft is not null));

-- A pull request counts among what the bot creates on GitHub. Its row is written when GitHub was asked.
alter table outbox drop constraint outbox_kind_check;
alter table outbox add constraint outbox_kind_check check (kind in ('reaction', 'comment', 'pull-request'));
