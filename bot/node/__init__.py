"""Parts that all work on this node shares: its context, process locks, transactions with retries."""
