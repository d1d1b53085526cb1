"""What the agent is told of the state in which it finds its worktree. Pure."""


def rewritten(branch: str, ahead: int, behind: int) -> str:
    """Somebody force-pushed."""
    return (
        f"`{branch}` was rewritten on GitHub: `origin/{branch}` lacks {ahead} commit(s) that are here, and has "
        f"{behind} other(s). Nothing was merged. What is committed here goes to a branch of its own, unless it is "
        f"built on `origin/{branch}`."
    )


def branch_deleted(branch: str) -> str:
    """Somebody deleted it there."""
    return f"`{branch}` was deleted on GitHub. It is made there again if you change something."


def continued(before: str, after: str) -> str:
    """Its branch was merged."""
    return f"`{before}` was merged meanwhile. The worktree is now on `{after}`, which has everything from there."


def unfinished(operation: str) -> str:
    """A git operation was begun and not ended."""
    return f"A {operation} is in progress in it: finish or abort it."
