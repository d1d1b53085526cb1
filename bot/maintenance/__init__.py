"""Maintenance of a node: prune old worktrees, repair, delete expired data."""
