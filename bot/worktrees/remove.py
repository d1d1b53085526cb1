"""A worktree is removed: what exists only there is rescued, then its directory and git's entry are renamed away."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

import structlog

from bot.clones import entries
from bot.clones.admin import Missing, admin_directory
from bot.clones.branch_history import is_merged
from bot.clones.checkout import put_back
from bot.clones.clone import Clone, CloneLock
from bot.clones.importing import import_commits, private_commits
from bot.failpoints import reached
from bot.git import refs
from bot.git.errors import GitError
from bot.rescue.contents import parse_entries
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
        return NotRemoved(f"it could not be examined or moved away: {error}")
    if isinstance(found, KeepDirectory):
        _log.warning("worktree-kept-whole", path=str(path), kept=str(departed.kept), why=found.why)
    rescued = rescued_commit(found)
    deleted = not shared and await _delete_branch(lock, path, label.branch, rescued, remote)
    reached("branch-deleted")
    if os.path.lexists(path):  # noqa: ASYNC240
        return NotRemoved("something made its directory again while it was removed")
    return Removed(rescued, departed.kept, deleted, departed.trashed)


async def remove_if_clean(lock: CloneLock, path: Path, label: RescueLabel, remote: Remote) -> Removed | NotRemoved:
    """Remove the worktree, after a fetch, if it has nothing that needs a rescue. Raises InvalidNameError."""
    try:
        await put_back(lock.clone, path)
        await import_commits(lock, path, label.branch)
        why, shared = await asyncio.gather(
            _reason_to_keep(lock, path, label.branch), _is_shared(lock.clone, path, label.branch)
        )
        if why is not None:
            return NotRemoved(why, in_use=True)
        departed = unlink_worktree(lock, path, label.at, whole=False)
    except (GitError, OSError) as error:
        return NotRemoved(f"it could not be examined or moved away: {error}")
    deleted = not shared and await _delete_branch(lock, path, label.branch, None, remote)
    reached("branch-deleted")
    return Removed(None, departed.kept, deleted, departed.trashed)


async def _reason_to_keep(lock: CloneLock, path: Path, branch: str | None) -> str | None:
    """Return what a removal of this worktree would lose, or None. Raises GitError, OSError if that is unknown."""
    clone = lock.clone
    admin = admin_directory(clone.path, path)
    if isinstance(admin, Missing):
        return f"the directory is not a worktree of this repository: {admin.why}"
    if entries.is_unfinished(admin):
        return "it was never finished"
    if await private_commits(lock, path):
        return "commits or stashes that are on none of the bot's branches"
    operation = await entries.operation_in_progress(clone, path)
    if operation:
        return f"a {operation} is in progress"
    changed = await entries.changed_files(clone, path)
    if changed:
        return f"{len(changed)} uncommitted or untracked files, among them {changed[0]!r}"
    listed = await clone.on_worktree(path, "ls-files", "--stage", "-v", "-z")
    flagged = next((entry.name for entry in parse_entries(listed.stdout) if entry.flagged), None)
    if flagged is not None:
        return f"edits of {flagged!r} would not be seen (skip-worktree or assume-unchanged)"
    state = await clone.state_folder(path)
    if state is not None and os.path.lexists(state / "modules"):  # noqa: ASYNC240
        return "its submodules may have commits of their own"
    if await stashes_not_rescued(clone, {branch}):
        return "stashed changes"
    head = await entries.head_of(clone, path)
    for revision in (head, refs.local(branch) if branch else None):
        commit = await clone.commit_at(revision) if revision else None
        unpublished = await clone.unpublished(commit) if commit else 0
        if unpublished:
            return f"{unpublished} commits that were not pushed"
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
        if any(key.startswith(f"branch.{branch}.") for key in (await clone.git.configuration(clone.path)).values):
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
