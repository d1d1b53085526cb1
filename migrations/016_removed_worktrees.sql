-- Rows of removed worktrees are deleted, for which each foreign key needs an index.
create index turns_by_worktree on turns (worktree_id) where worktree_id is not null;
create index operations_by_worktree on operations (worktree_id);
create index worktrees_removed on worktrees (node, updated_at) where state = 'removed';
