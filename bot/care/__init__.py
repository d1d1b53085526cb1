"""What a node does by itself, or when an operator asks: prune, repair, delete what expired, back up."""
