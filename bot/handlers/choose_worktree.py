"""Which worktree a conversation's next turn runs in, decided from rows alone. Pure (DESIGN.md §4, the worktree)."""

from collections.abc import Sequence
from dataclasses import dataclass

from bot.model import DetachedHead, HeadBranch, IssueBranch, LiveWorktree, Start
from bot.sharing_rules import SharingRefused, WorktreeUsage, sharing_obstacle


@dataclass(frozen=True, slots=True)
class PullRequestHead:
    """The head of a pull request: whose it is, whether its branch may be pushed to, which issues it closes."""

    number: int
    head_ref: str
    head_sha: str
    same_repository: bool
    head_is_protected: bool
    closes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live worktree that might be shared; `issue`: the one that uses it and that the pull request closes."""

    worktree: LiveWorktree
    use: WorktreeUsage
    issue: int | None = None


@dataclass(frozen=True, slots=True)
class SharedWorktree:
    """Run in a worktree that is there; `switch_to`: the branch it must have by then."""

    candidate: Candidate
    switch_to: str


@dataclass(frozen=True, slots=True)
class NewWorktree:
    """Reserve a new worktree that starts from this; `folder` names its directory.

    `instead_of`: what would have been shared, and why it is not.
    """

    folder: str
    start: Start
    instead_of: SharingRefused | None = None


def choose_worktree(
    number: int, pull: PullRequestHead | None, linked: Sequence[Candidate], on_branch: Candidate | None
) -> SharedWorktree | NewWorktree:
    """The first that holds: the worktree on the head branch, one of an issue it closes that can be switched, a new one.

    `linked` are the live worktrees of the issues the pull request closes, in GitHub's order; `on_branch` is the one
    that is or will be on its head branch. git checks out a branch only once: while one has it, no other can be switched
    to it.
    """
    if pull is None or not pull.same_repository or pull.head_is_protected:
        return new_worktree(number, pull)
    has_it = next((one for one in linked if one.worktree.reserved_branch == pull.head_ref), on_branch)
    if has_it is not None:
        return SharedWorktree(has_it, pull.head_ref)
    reasons = []
    for one in linked:
        reason = sharing_obstacle(one.use)
        if reason is None:
            return SharedWorktree(one, pull.head_ref)
        reasons.append(reason)
    return new_worktree(number, pull, reasons[0] if reasons else None)


def new_worktree(number: int, pull: PullRequestHead | None, instead_of: SharingRefused | None = None) -> NewWorktree:
    """A worktree of the thread's own: an issue's branch, a pull request's head branch, or its head without a branch."""
    if pull is None:
        return NewWorktree(f"issue-{number}", IssueBranch(number), instead_of)
    if not pull.same_repository or pull.head_is_protected:
        return NewWorktree(f"pr-{number}", DetachedHead(pull.head_sha, f"refs/pull/{number}/head"))
    return NewWorktree(f"pr-{number}", HeadBranch(pull.head_ref, pull.head_sha), instead_of)
