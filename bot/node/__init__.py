"""What all work on this node shares: its context, process locks, patient transactions."""
