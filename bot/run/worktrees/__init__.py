"""A codebase on disk: its bare clone, the worktrees of conversations, and the work in them. Everything here is git."""
