"""What people read about worktrees: the answers to `/reset` and `/worktree`, and what a turn says of its own."""
