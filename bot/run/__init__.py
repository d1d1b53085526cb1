"""The third step: one claimed turn, from the worktree's check to the push."""
