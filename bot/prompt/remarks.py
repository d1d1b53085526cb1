"""What the agent is told about the state of its worktree; names of branches and outputs are foreign. Pure."""

from bot.prompt.foreign import Foreign, Told


def fast_forwarded(commits: int) -> Told:
    """`commits` were pushed since the last turn."""
    return (f"It was brought up to date with {commits} commit(s) that were pushed since.",)


def dirty(files: int, behind: int) -> Told:
    """`files` of an earlier turn are uncommitted; the branch on GitHub is `behind` commits ahead of them."""
    late = f" and is {behind} commit(s) behind its branch on GitHub" if behind else ""
    return (f"It holds {files} uncommitted file(s) of an earlier turn{late}; nothing was changed.",)


def diverged(ahead: int, behind: int) -> Told:
    """Both the worktree and GitHub have commits that the other lacks."""
    return (
        f"Its branch has {ahead} commit(s) that GitHub lacks, and lacks {behind} that GitHub has; nothing was merged.",
    )


def off_branch(current: str | None, branch: str) -> Told:
    """HEAD is not on the worktree's branch."""
    now = Foreign(current) if current else "a detached HEAD"
    return ("It belongs to branch ", Foreign(branch), ", but ", now, " is checked out.")


def rewritten(branch: str, ahead: int, behind: int) -> Told:
    """The branch was force-pushed on GitHub."""
    return (
        "The branch ",
        Foreign(branch),
        f" was rewritten on GitHub: it lacks {ahead} commit(s) there that are here, and has {behind} other(s). Nothing "
        "was merged. What is committed here goes to a branch of its own, unless it is built on the branch as "
        "`origin` has it.",
    )


def branch_deleted(branch: str) -> Told:
    """The branch was deleted on GitHub."""
    return ("The branch ", Foreign(branch), " was deleted on GitHub. It is made there again if you change something.")


def continued(before: str, after: str) -> Told:
    """The branch `before` was merged."""
    now = (Foreign(after), ", which has everything from there.")
    return ("The branch ", Foreign(before), " was merged meanwhile. The worktree is now on ", *now)


def unfinished(operation: str) -> Told:
    """`operation` is git's word, such as `merge`."""
    return (f"A {operation} is in progress in it: finish or abort it.",)


def setup_failed(how: str, output: str) -> Told:
    """The repository's own script failed; `output` is the end of what it wrote."""
    said = (" It wrote last: ", Foreign(output)) if output else ()
    return (f"`.threadtree/setup`, which prepares it, {how}.", *said)


def setup_left(files: int) -> Told:
    """The repository's own script left `files` that git does not ignore."""
    left = f"{files} file(s) that git does not ignore; they are committed."
    return (f"`.threadtree/setup`, which prepared it, left {left}",)
