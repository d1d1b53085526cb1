"""Saving work before anything removes or resets a worktree, and bringing it back."""
