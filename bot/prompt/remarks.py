"""What the agent is told about the state of its worktree. Pure."""


def fast_forwarded(commits: int) -> str:
    """`commits` were pushed since the last turn."""
    return f"It was brought up to date with {commits} commit(s) that were pushed since."


def dirty(files: int, behind: int) -> str:
    """`files` of an earlier turn are uncommitted; the branch on GitHub is `behind` commits ahead of them."""
    late = f" and is {behind} commit(s) behind its branch on GitHub" if behind else ""
    return f"It holds {files} uncommitted file(s) of an earlier turn{late}; nothing was changed."


def diverged(ahead: int, behind: int) -> str:
    """Both the worktree and GitHub have commits that the other lacks."""
    return (
        f"Its branch has {ahead} commit(s) that GitHub lacks, and lacks {behind} that GitHub has; nothing was merged."
    )


def off_branch(current: str | None, branch: str) -> str:
    """HEAD is not on the worktree's branch."""
    now = f"`{current}` is" if current else "a detached HEAD is"
    return f"It belongs to branch `{branch}`, but {now} checked out."


def rewritten(branch: str, ahead: int, behind: int) -> str:
    """The branch was force-pushed on GitHub."""
    return (
        f"`{branch}` was rewritten on GitHub: `origin/{branch}` lacks {ahead} commit(s) that are here, and has "
        f"{behind} other(s). Nothing was merged. What is committed here goes to a branch of its own, unless it is "
        f"built on `origin/{branch}`."
    )


def branch_deleted(branch: str) -> str:
    """The branch was deleted on GitHub."""
    return f"`{branch}` was deleted on GitHub. It is made there again if you change something."


def continued(before: str, after: str) -> str:
    """The branch `before` was merged."""
    return f"`{before}` was merged meanwhile. The worktree is now on `{after}`, which has everything from there."


def unfinished(operation: str) -> str:
    """`operation` is git's word, such as `merge`."""
    return f"A {operation} is in progress in it: finish or abort it."


def setup_failed(how: str, output: str) -> str:
    """The repository's own script failed; `output` is the end of what it wrote."""
    said = "".join(f"\n    {line}" for line in output.split("\n")) if output else ""
    return f"`.threadtree/setup`, which prepares it, {how}." + (f" It wrote last:{said}" if said else "")


def setup_left(files: int) -> str:
    """The repository's own script left `files` that git does not ignore."""
    return f"`.threadtree/setup`, which prepared it, left {files} file(s) that git does not ignore; they are committed."
