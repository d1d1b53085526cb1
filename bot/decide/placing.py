"""Which worktree a conversation's next turn runs in, decided from rows alone. Pure (DESIGN.md §4, the worktree)."""

from dataclasses import dataclass

from bot.model import LiveWorktree


@dataclass(frozen=True, slots=True)
class PullPlace:
    """What matters of a pull request: whose head it is, and whether that branch may be pushed to."""

    number: int
    head_ref: str
    head_sha: str
    same_repository: bool
    head_is_protected: bool


@dataclass(frozen=True, slots=True)
class Share:
    """Run in a worktree that is there; `issue` is whose it is, where it is an issue's."""

    worktree: LiveWorktree
    issue: int | None = None


@dataclass(frozen=True, slots=True)
class Make:
    """Reserve a new worktree that starts from this; `folder` names its directory."""

    folder: str
    start: tuple[str, int, str | None, str | None]
    pinned_sha: str | None = None


def place(
    number: int,
    pull: PullPlace | None,
    linked: list[tuple[int, LiveWorktree]],
    on_branch: LiveWorktree | None,
) -> Share | Make:
    """The first that holds: a linked issue's worktree that has the head branch, the one on that branch, a new one.

    `linked` are the live worktrees of the issues the pull request closes, `on_branch` the one on its head branch.
    """
    if pull is None:
        return Make(f"issue-{number}", ("issue", number, None, None))
    if not pull.same_repository or pull.head_is_protected:
        pinned = None if pull.same_repository else pull.head_sha
        return Make(f"pr-{number}", ("detached", number, f"refs/pull/{number}/head", pull.head_sha), pinned)
    for issue, worktree in linked:
        if worktree.reserved_branch == pull.head_ref:
            return Share(worktree, issue)
    if on_branch is not None:
        return Share(on_branch, on_branch.issue)
    return Make(f"pr-{number}", ("head", number, pull.head_ref, pull.head_sha))
