"""The state of the code: git, clones, worktrees, rescues, and files under Git LFS."""
