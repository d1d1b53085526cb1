"""What a node does by itself: prune old worktrees, repair, delete what expired."""
