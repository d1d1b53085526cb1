"""A worktree is reset: what it holds is rescued, then it is created again at its base on GitHub.

A new directory has no ignored file, hidden edit, submodule or index of the old one, so nothing has to be cleaned.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path

from bot import refs
from bot.failpoints import reached
from bot.model import DetachedHead, HeadBranch, IssueBranch, Start
from bot.thread import reasons
from bot.tree.clone.admin import holder
from bot.tree.clone.clone import CheckoutRefused, CloneLock
from bot.tree.clone.fetch import fetch_ref, remote_default_branch
from bot.tree.clone.on_host import move_branch
from bot.tree.clone.start import StartPoint, issue_branch
from bot.tree.create import recreate
from bot.tree.git.errors import GitError, GitProblem
from bot.tree.remove import rescue_first, unlink_worktree
from bot.tree.rescue.message import RescueLabel
from bot.tree.rescue.save import Rescued


@dataclass(frozen=True, slots=True)
class WasReset:
    """Clean at `after`, the tip of its base, on `branch` (None: detached).

    `base_branch` is known for an issue's branch. What was there is in `rescue`, or in the directory `kept`, or it held
    nothing. `trashed`: bytes to be deleted.
    """

    branch: str | None
    base_branch: str | None
    after: str
    rescue: Rescued | None
    kept: Path | None
    trashed: tuple[Path, ...] = ()


async def reset(
    lock: CloneLock, path: Path, start: Start, label: RescueLabel, merged_head: str | None = None
) -> WasReset | CheckoutRefused:
    """Reset the worktree of the branch in `label`, after a fetch. An issue's branch only moves forward: if it has
    commits of its own, or was merged (`merged_head`: the last merged commit, by GitHub), the issue's next branch is
    checked out.

    After it was cut off it can be repeated with the same label. Raises GitError, OSError, InvalidNameError.
    """
    clone = lock.clone
    base = await _base(lock, start, label.branch)
    if isinstance(base, CheckoutRefused):
        return base
    rescued, why = await rescue_first(lock, path, label)
    reached("reset-rescued")
    branch = await _branch(lock, path, base, start, merged_head)
    if branch is not None and holder(clone.path, branch, path) is not None:
        return CheckoutRefused(reasons.branch_checked_out(branch))
    gone = unlink_worktree(lock, path, label.at, whole=why is not None)
    if branch is not None and (tip := await clone.commit_at(refs.local(branch))) != base.commit:
        await move_branch(lock, path, refs.local(branch), base.commit, tip)
    made = await recreate(lock, path, branch, base.commit, refs.rescue_ref(str(label.worktree_id), label.at))
    if isinstance(made, CheckoutRefused):
        return made
    reached("reset-done")
    return WasReset(branch, base.base_branch, base.commit, rescued, gone.kept, gone.trashed)


async def _base(lock: CloneLock, start: Start, branch: str | None) -> StartPoint | CheckoutRefused:
    clone = lock.clone
    match start:
        case DetachedHead(sha, ref_to_fetch) if branch is None:
            try:
                return StartPoint(None, None, await fetch_ref(lock, ref_to_fetch))
            except GitError as error:
                if error.problem is not GitProblem.NOT_FOUND or await clone.commit_at(sha) is None:
                    raise
                return StartPoint(None, None, sha)
        case IssueBranch() if branch is None or refs.sequel_of(branch, start) is not None:
            default = await remote_default_branch(lock)
            if isinstance(default, CheckoutRefused):
                return default
            tip = await clone.commit_at(refs.remote(default.name)) or default.tip
            return StartPoint(branch or await issue_branch(clone, start, 1), default.name, tip)
        case IssueBranch() | HeadBranch() | DetachedHead():
            name = branch or (start.branch if isinstance(start, HeadBranch) else "")
            theirs = await clone.commit_at(refs.remote(name))
            if theirs is None:
                return CheckoutRefused(reasons.branch_gone(name))
            return StartPoint(name, None, theirs)


async def _branch(lock: CloneLock, path: Path, base: StartPoint, start: Start, merged_head: str | None) -> str | None:
    """Return the branch to check out: for an issue the base's or the next free one. A pull request's local branch moves
    to GitHub's commit, after the rescue of what was committed on it.
    """
    clone = lock.clone
    if base.branch is None or base.base_branch is None or not isinstance(start, IssueBranch):
        return base.branch
    first = refs.sequel_of(base.branch, start) or 1
    if merged_head is None and await _is_free(lock, base.branch, base.commit, published=True):
        return base.branch
    for sequel in itertools.count(first + 1):
        branch = await issue_branch(clone, start, sequel)
        free = await _is_free(lock, branch, base.commit, published=False)
        if free and holder(clone.path, branch, path) is None:
            return branch
    raise AssertionError("there is always a next one")


async def _is_free(lock: CloneLock, branch: str, commit: str, *, published: bool) -> bool:
    """Return whether the branch can move to `commit` and lose no commit; no if GitHub has it, unless `published`.

    A local branch without commits of its own can be left from an attempt that was cut off.
    """
    clone = lock.clone
    theirs = await clone.commit_at(refs.remote(branch))
    if theirs is not None and not published:
        return False
    tips = (theirs, await clone.commit_at(refs.local(branch)))
    return all([tip is None or await clone.is_ancestor(tip, commit) for tip in tips])
