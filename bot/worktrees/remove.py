"""A worktree is removed: what exists only there is rescued, then its directory and git's entry are renamed away."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

import structlog

from bot.clones.admin import Missing, is_unfinished
from bot.clones.branch_history import is_merged
from bot.clones.check_out import put_back
from bot.clones.checkout import Checkout, open_checkout
from bot.clones.clone import Clone, CloneLock
from bot.clones.importing import import_commits, private_commits
from bot.failpoints import reached
from bot.git import refs
from bot.git.errors import GitError
from bot.messages import reasons
from bot.rescue.contents import flagged_file
from bot.rescue.message import RescueLabel
from bot.rescue.save import KeepDirectory, Rescued, stashes_not_rescued
from bot.worktrees.unlink import is_checked_out_elsewhere, rescue_first, rescued_commit, unlink_worktree

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Remote:
    """GitHub's answers before a removal: `base_branch` is what the branch is merged into, `merged_head` the last commit
    that was merged from it, None where unknown or none. `counts` False: the repository is gone, nothing counts as
    published.
    """

    base_branch: str | None = None
    merged_head: str | None = None
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Removed:
    """Gone on disk and in git. Work that was nowhere else is in `rescue` or in the directory `kept`.

    `trashed`: bytes to be deleted, see `trash.delete`.
    """

    rescue: Rescued | None
    kept: Path | None
    branch_deleted: bool
    trashed: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class NotRemoved:
    """Still there, with all its work. `in_use`: it has work that needs a rescue, so the reason is no error."""

    why: str
    in_use: bool = False


async def remove(lock: CloneLock, path: Path, label: RescueLabel, remote: Remote) -> Removed | NotRemoved:
    """Remove the worktree of the branch in `label`, after a fetch, and its branch if its commits are elsewhere.

    It can be repeated with the same label after it was cut off, and ends the same. Raises InvalidNameError.
    """
    if label.branch is not None:
        refs.local(label.branch)
    try:
        found, shared = await asyncio.gather(
            rescue_first(lock, path, label, published=remote.counts), _is_shared(lock.clone, path, label.branch)
        )
        departed = unlink_worktree(lock, path, label.at, whole=isinstance(found, KeepDirectory))
    except (GitError, OSError) as error:
        return NotRemoved(reasons.not_examined(error))
    if isinstance(found, KeepDirectory):
        _log.warning("worktree-kept-whole", path=str(path), kept=str(departed.kept), why=found.why)
    rescued = rescued_commit(found)
    deleted = not shared and await _delete_branch(lock, path, label.branch, rescued, remote)
    reached("branch-deleted")
    if os.path.lexists(path):  # noqa: ASYNC240
        return NotRemoved(reasons.MADE_AGAIN)
    return Removed(rescued, departed.kept, deleted, departed.trashed)


async def remove_if_clean(lock: CloneLock, path: Path, label: RescueLabel, remote: Remote) -> Removed | NotRemoved:
    """Remove the worktree, after a fetch, if it has nothing that needs a rescue. Raises InvalidNameError."""
    try:
        checkout = await open_checkout(lock, path)
        if isinstance(checkout, Missing):
            return NotRemoved(reasons.no_worktree_here(checkout.why), in_use=True)
        await put_back(checkout)
        await import_commits(checkout, label.branch)
        why, shared = await asyncio.gather(
            _reason_to_keep(checkout, label.branch), _is_shared(lock.clone, path, label.branch)
        )
        if why is not None:
            return NotRemoved(why, in_use=True)
        departed = unlink_worktree(lock, path, label.at, whole=False)
    except (GitError, OSError) as error:
        return NotRemoved(reasons.not_examined(error))
    deleted = not shared and await _delete_branch(lock, path, label.branch, None, remote)
    reached("branch-deleted")
    return Removed(None, departed.kept, deleted, departed.trashed)


async def _reason_to_keep(checkout: Checkout, branch: str | None) -> str | None:
    """Return what a removal of this worktree would lose, or None. Raises GitError, OSError if that is unknown."""
    clone = checkout.clone
    if is_unfinished(checkout.admin):
        return reasons.UNFINISHED_WORKTREE
    if await private_commits(checkout):
        return reasons.PRIVATE_COMMITS
    if operation := checkout.operation_in_progress():
        return reasons.operation_in_progress(operation)
    if changed := await checkout.changed_files():
        return reasons.uncommitted_files(len(changed), changed[0])
    if (flagged := await flagged_file(checkout)) is not None:
        return reasons.hidden_edits(flagged)
    if os.path.lexists(checkout.state / "modules"):  # noqa: ASYNC240
        return reasons.SUBMODULES
    if await stashes_not_rescued(clone, {branch}):
        return reasons.STASHES
    for revision in (checkout.head.commit, refs.local(branch) if branch else None):
        commit = await clone.commit_at(revision) if revision else None
        if commit and (unpublished := await clone.unpublished(commit)):
            return reasons.unpushed(unpublished)
    return None


async def _is_shared(clone: Clone, path: Path, branch: str | None) -> bool:
    return branch is not None and await asyncio.to_thread(is_checked_out_elsewhere, clone.path, path, branch)


async def _delete_branch(
    lock: CloneLock, path: Path, branch: str | None, rescued: Rescued | None, remote: Remote
) -> bool:
    """Delete the local branch; return whether it was deleted. A failure is logged and does not stop the removal."""
    clone = lock.clone
    try:
        tip = await clone.commit_at(refs.local(branch)) if branch is not None else None
        if branch is None or tip is None or not await _is_elsewhere(clone, branch, tip, rescued, remote):
            return False
        await clone.run("update-ref", "-d", refs.local(branch), tip)
        await clone.run("config", "--local", "--remove-section", f"branch.{branch}", check=False)
    except (GitError, OSError) as error:
        _log.warning("branch-not-deleted", path=str(path), branch=branch, error=str(error))
        return False
    return True


async def _is_elsewhere(clone: Clone, branch: str, tip: str, rescued: Rescued | None, remote: Remote) -> bool:
    """Return whether the rescue, GitHub's branch of that name or the branch it was merged into has all its commits."""
    theirs = await clone.commit_at(refs.remote(branch)) if remote.counts else None
    for published in (theirs, rescued.sha if rescued else None):
        if published is not None and await clone.is_ancestor(tip, published):
            return True
    if not remote.counts:
        return False
    base = await clone.commit_at(refs.remote(remote.base_branch)) if remote.base_branch else None
    return await is_merged(clone, tip, base, remote.merged_head)
