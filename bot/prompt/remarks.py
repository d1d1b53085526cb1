"""What the agent is told about the state of its worktree; names of branches and outputs are foreign. Pure."""

from collections.abc import Mapping

from bot.prompt.foreign import Foreign, Told

FINISH_NOW = """\
You were interrupted because the limit of what this request may cost is reached. Stop here: begin nothing new. If the \
files are in a state that does not build, make the smallest change that corrects it. Then end with your final message: \
say what is done, and what is left. What is in the worktree is committed and pushed."""


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


def followed(branch: str, commits: int) -> Told:
    """The branch was force-pushed on GitHub, and the worktree is where it is now."""
    return (
        "The branch ",
        Foreign(branch),
        f" was rewritten on GitHub by people, and the worktree is at its new head. {commits} commit(s) from before are "
        "not there any more: somebody took them off. Do not bring them back.",
    )


def branch_gone(branch: str) -> Told:
    """The head branch of a pull request was deleted."""
    return (
        "The branch ",
        Foreign(branch),
        " of the pull request is no longer on GitHub. You are at its last commit; what you change is shown as a patch.",
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


def history_arriving() -> Told:
    """Older commits are fetched while the agent works."""
    return ("The repository's older history is still arriving: until it is here, git shows its newest commits alone.",)


def filtered(lines: tuple[str, ...]) -> Told:
    """`lines` of `.gitattributes` give files a filter."""
    return (
        "Files that match these lines of `.gitattributes` pass a filter that does not run here. "
        "You see what git stores of them. What you change in them is left out of the commit, and a push of commits "
        "with such changes is refused: ",
        Foreign("\n".join(lines)[:2000]),
    )


def lfs(lines: tuple[str, ...], pointers: tuple[str, ...]) -> Told:
    """`lines` of `.gitattributes` put files under Git LFS; the files in `pointers` are without their content."""
    told: Told = (
        "Files that match these lines of `.gitattributes` are under Git LFS. You see and change their content as of "
        "any file, and git stores pointers: ",
        Foreign("\n".join(lines)[:2000]),
    )
    if pointers:
        told = (*told, "Of these you see only the pointers, not the content: ", Foreign("\n".join(pointers)[:2000]))
    return told


def submodules_empty(empty: Mapping[str, str]) -> Told:
    """The reasons why submodules are not filled, by path."""
    lines = "\n".join(f"{path}: {why}" for path, why in empty.items())
    return (
        "These submodules were not filled, and no command here can fetch them. Say so where your work needs them: ",
        Foreign(lines[:2000]),
    )


def reviews_another(head: str) -> Told:
    """The worktree is not at `head`, the commit that is reviewed: it has work that GitHub lacks, or lacks some."""
    return (
        f"It is not at the commit that you review: look at that with `git show {head}:PATH` and `git diff {head}`.",
    )


def setup_failed(how: str, output: str) -> Told:
    """The repository's own script failed; `output` is the end of what it wrote."""
    said = (" It wrote last: ", Foreign(output)) if output else ()
    return (f"`.threadtree/setup`, which prepares it, {how}.", *said)


def setup_left(files: int) -> Told:
    """The repository's own script left `files` that git does not ignore."""
    left = f"{files} file(s) that git does not ignore; they are committed."
    return (f"`.threadtree/setup`, which prepared it, left {left}",)
