"""The end of a worktree: kept while it holds work that exists nowhere else, else renamed away, forgotten, deleted."""

import asyncio
import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

import structlog

from bot.run.worktrees import entries, refs
from bot.run.worktrees.clone import Clone, CloneLock, move_to_trash
from bot.run.worktrees.entries import Missing
from bot.run.worktrees.git import GitError
from bot.run.worktrees.importing import bring_home, forget_private, only_in_cage
from bot.run.worktrees.linked import admin_directory

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Removed:
    """Gone on disk and in git; the branch went too if the remote has all its commits."""

    branch_deleted: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """Still there, with all its work."""

    why: str


async def remove(lock: CloneLock, path: Path, branch: str | None, rescue: str) -> Removed | Kept:
    """Removes the worktree, after a fetch, unless it holds work that is not on the remote or that cannot be told.

    Commits that only the HEAD of a vanished directory reached are kept under the ref `rescue`. Raises InvalidNameError.
    """
    clone = lock.clone
    try:
        await bring_home(lock, path, branch)
        why = await _reason_to_keep(lock, path, branch)
        if why is not None:
            return Kept(why)
        trashed = move_to_trash(clone, path)
        try:
            await entries.drop_entry(lock, path, rescue)
        except GitError:
            if trashed is not None:
                trashed.rename(path)
            raise
        private = forget_private(clone, path)
        branch_deleted = branch is not None and await _delete_published_branch(clone, branch)
    except (GitError, OSError) as error:
        return Kept(f"it could not be examined or removed: {error}")
    if os.path.lexists(path):  # noqa: ASYNC240
        return Kept("something made its directory again while it was removed")
    for leftover in (trashed, private):
        if leftover is not None:
            await asyncio.to_thread(delete_bytes, leftover)
    return Removed(branch_deleted)


def delete_bytes(trashed: Path) -> None:
    """Deletes what lies in the trash, also without permissions; what remains is logged and left to housekeeping."""
    try:
        if trashed.is_symlink() or not trashed.is_dir():
            trashed.unlink()
        else:
            _delete_tree(trashed)
    except OSError as error:
        log.warning("trash-not-deleted", path=str(trashed), error=str(error))


async def _reason_to_keep(lock: CloneLock, path: Path, branch: str | None) -> str | None:
    """Why removing this worktree would lose work, or None. Raises GitError when that cannot be told."""
    clone = lock.clone
    in_cage = await only_in_cage(lock, path)
    if in_cage:
        return f"{in_cage} commits or stashes that were not pushed"
    if not os.path.lexists(path):  # noqa: ASYNC240
        return None
    admin = admin_directory(clone.path, path)
    if isinstance(admin, Missing):
        return f"the directory is not a worktree of this repository: {admin.why}"
    if entries.is_unfinished(admin):
        return None
    operation = await entries.operation_in_progress(clone, path)
    if operation:
        return f"a {operation} is in progress"
    changed = await entries.changed_files(clone, path)
    if changed:
        return f"{len(changed)} uncommitted or untracked files, among them {changed[0][1]!r}"
    flagged = await _flagged_files(clone, path)
    if flagged:
        return f"edits of {flagged[0]!r} would not be seen (skip-worktree or assume-unchanged)"
    if await _stashes(clone, branch):
        return "stashed changes"
    head = await entries.head_of(clone, path)
    for revision in (head, refs.local(branch) if branch else None):
        commit = await clone.commit_at(revision) if revision else None
        unpublished = await clone.unpublished(commit) if commit else 0
        if unpublished:
            return f"{unpublished} commits that were not pushed"
    return None


async def _flagged_files(clone: Clone, path: Path) -> list[str]:
    """Files whose edits git was told not to see: S or a lower-case tag, https://git-scm.com/docs/git-ls-files."""
    listed = await clone.on_worktree(path, "ls-files", "-v", "-z")
    return [line[2:] for line in listed.fields if line[0] == "S" or line[0].islower()]


async def _stashes(clone: Clone, branch: str | None) -> bool:
    """Whether something was stashed on this branch: all worktrees of a clone share one list."""
    if await clone.commit_at("refs/stash") is None:
        return False
    listed = await clone.run("reflog", "show", "--format=%gs", "refs/stash")
    on_this_branch = re.compile(rf"(WIP on|On) {re.escape(branch or '(no branch)')}: ")
    return any(on_this_branch.match(subject) for subject in listed.text.splitlines())


async def _delete_published_branch(clone: Clone, branch: str) -> bool:
    ref = refs.local(branch)
    tip = await clone.commit_at(ref)
    if tip is None or any(entry.branch == branch for entry in await entries.all_entries(clone)):
        return False
    if await clone.count(tip, "--not", "--remotes=origin"):
        return False
    await clone.run("update-ref", "-d", ref, tip)
    # Where the branch tracked nothing there is no such section.
    await clone.run("config", "--local", "--remove-section", f"branch.{branch}", check=False)
    return True


def _delete_tree(directory: Path) -> None:
    """A directory without write permission keeps its files from being deleted, so a second try gives it to all."""
    try:
        shutil.rmtree(directory)
    except PermissionError:
        directory.chmod(stat.S_IRWXU)
        for parent, names, _ in os.walk(directory):
            for name in names:
                if not Path(parent, name).is_symlink():
                    Path(parent, name).chmod(stat.S_IRWXU)
        shutil.rmtree(directory)
