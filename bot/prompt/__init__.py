"""What the agent is told: the thread as it was when the request was made, under a budget, and last the request."""
