"""Git LFS: objects are fetched for the agent and pushed by the host, both with the program `git-lfs`."""
