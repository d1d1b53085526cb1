"""A repository on this machine: its bare clone, git's entries of the worktrees, and what lies beside them."""
