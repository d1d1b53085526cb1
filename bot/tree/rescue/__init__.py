"""Rescues: work is saved before a worktree is removed or reset, and restored on request."""
