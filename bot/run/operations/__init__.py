"""What is asked of a worktree itself, by a person or by its end: make, reset, restore, remove."""
