"""Whether a pull request may share a worktree that others use, decided from rows. Pure (DESIGN.md §4)."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """A live node: the turns that wait or run there, and its live worktrees."""

    id: str
    name: str
    turns: int
    worktrees: int


@dataclass(frozen=True, slots=True)
class LiveWorktree:
    """A live worktree that a request may use; `owner` is the number of the thread it was made for.

    `branch` is the branch that it has, or that it gets when it is made; None for a detached one.
    """

    id: int
    node: str
    owner: int
    branch: str | None
    path: str


Misfit = Literal[
    "fork",
    "not-made",
    "other-pull",
    "busy",
    "missing",
    "uncommitted",
    "unfinished",
    "off-branch",
    "hidden-edits",
    "only-here",
    "not-contained",
    "branch-gone",
    "branch-elsewhere",
    "branch-diverged",
    "in-the-way",
]
"""Why a worktree cannot be switched to the head branch of a pull request."""


@dataclass(frozen=True, slots=True)
class WorktreeUsage:
    """The use of a worktree by other conversations than the one that asks; `owner` is the thread it was made for.

    `busy`: a turn of another conversation, or of an operator, is queued or running in it.
    """

    owner: int
    made: bool
    other_pulls: tuple[int, ...] = ()
    busy: bool = False


@dataclass(frozen=True, slots=True)
class SharingRefused:
    """The worktree of `owner` cannot be shared, and why; `other_pull` is the pull request that uses it."""

    owner: int
    why: Misfit
    other_pull: int | None = None


def sharing_obstacle(use: WorktreeUsage) -> SharingRefused | None:
    """Return why the worktree cannot be switched to another branch, as far as rows tell; None if it can."""
    if not use.made:
        return SharingRefused(use.owner, "not-made")
    if use.other_pulls:
        return SharingRefused(use.owner, "other-pull", use.other_pulls[0])
    return SharingRefused(use.owner, "busy") if use.busy else None
