"""Operations on a worktree, queued in line with its turns: create, reset, remove, restore."""
