"""Work on a worktree itself, queued in line with its turns: create, reset, remove, restore."""
