-- The numbers of the threads that a lost worktree had: what its node rescues from it is theirs.
alter table worktrees add column lost_threads integer[] not null default '{}';
