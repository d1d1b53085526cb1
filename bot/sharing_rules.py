"""Whether a pull request may work in a worktree that others use too, decided from its rows. Pure (DESIGN.md §4)."""

from dataclasses import dataclass
from typing import Literal

RowMisfit = Literal["not-made", "other-pull", "busy"]
GitMisfit = Literal[
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
Misfit = RowMisfit | GitMisfit
"""Why a worktree cannot be switched to the head branch of a pull request."""


@dataclass(frozen=True, slots=True)
class WorktreeUsage:
    """A worktree as one conversation finds it: `owner` is the thread it was made for, the rest is about the others.

    `busy`: a turn of another conversation waits or runs in it, or something else is to be done with it.
    """

    owner: int
    made: bool
    other_pulls: tuple[int, ...] = ()
    busy: bool = False


@dataclass(frozen=True, slots=True)
class SharingRefused:
    """The worktree of `owner` was not to be had, and why; `other_pull` is who uses it."""

    owner: int
    why: Misfit
    other_pull: int | None = None


def sharing_obstacle(use: WorktreeUsage) -> SharingRefused | None:
    """What keeps the worktree from being switched to another branch, as far as rows tell; None: nothing."""
    if not use.made:
        return SharingRefused(use.owner, "not-made")
    if use.other_pulls:
        return SharingRefused(use.owner, "other-pull", use.other_pulls[0])
    return SharingRefused(use.owner, "busy") if use.busy else None
