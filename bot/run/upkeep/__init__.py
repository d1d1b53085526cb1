"""What a node does by itself: old worktrees go; rows, disk and git are made to agree; what expires is deleted."""
