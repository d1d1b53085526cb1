-- An operator drops a rescue before its time, on its node and in line with the turns of its worktree.
alter table operations drop constraint operations_kind_check;
alter table operations add constraint operations_kind_check
    check (kind in ('create', 'reset', 'restore', 'remove', 'pull-request', 'drop'));
alter table operations add column rescue_id bigint;          -- of a drop; its row goes with the work
alter table operations add check ((kind = 'drop') = (rescue_id is not null));
