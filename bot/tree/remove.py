"""A worktree is removed: what exists only there is rescued, then its directory and git's folders are renamed away.

git's own `worktree remove` refuses some of the shapes, and looks at all worktrees of the clone each time.
"""

import asyncio
import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import structlog

from bot import refs
from bot.failpoints import reached
from bot.files import real_path
from bot.sandbox import trash
from bot.sandbox.bwrap import Bwrap
from bot.sandbox.view import name_of
from bot.thread import reasons
from bot.tree.clone.admin import Missing, folders_of, holder, is_unfinished, recorded
from bot.tree.clone.branch_history import is_merged
from bot.tree.clone.checkout import open_checkout
from bot.tree.clone.clone import Clone, CloneLock
from bot.tree.git.errors import GitError
from bot.tree.rescue.message import RescueLabel, drop_rescue, read_rescue
from bot.tree.rescue.restore import progress_file
from bot.tree.rescue.save import Rescued, Secured, save_rescue, work_only_here
from bot.tree.rescue.snapshot import flagged_file

# What broken files raise, and a full disk or too many open files do not.
_BROKEN = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EINVAL, errno.ENXIO}
)


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


@dataclass(frozen=True, slots=True)
class Unlinked:
    """Nothing is at the path, and git has no entry for it. `trashed`: what must be deleted.

    `kept`: the directory, if it was kept whole; git's folders for it are beside it in `<kept>.git`.
    """

    kept: Path | None
    trashed: tuple[Path, ...]


async def remove(
    lock: CloneLock, path: Path, label: RescueLabel, remote: Remote, *, only_clean: bool = False
) -> Removed | NotRemoved:
    """Remove the worktree of the branch in `label`, after a fetch, and its branch if its commits are elsewhere.

    With `only_clean` one that needs a rescue stays. It can be repeated with the same label after it was cut off, and
    ends the same. Raises InvalidNameError.
    """
    if label.branch is not None:
        refs.local(label.branch)
    try:
        if only_clean and (why := await _reason_to_keep(lock, path, label)) is not None:
            return NotRemoved(why, in_use=True)
        rescued, whole = await rescue_first(lock, path, label, published=remote.counts)
        branch = label.branch
        if branch is not None and await asyncio.to_thread(holder, lock.clone.path, branch, path) is not None:
            branch = None  # another worktree has it
        departed = unlink_worktree(lock, path, label.at, whole=whole is not None)
    except (GitError, OSError) as error:
        return NotRemoved(reasons.not_examined(error))
    if whole is not None:
        _log.warning("worktree-kept-whole", path=str(path), kept=str(departed.kept), why=whole)
    deleted = branch is not None and await _delete_branch(lock, path, branch, rescued, remote)
    reached("branch-deleted")
    if os.path.lexists(path):  # noqa: ASYNC240
        return NotRemoved(reasons.MADE_AGAIN)
    return Removed(rescued, departed.kept, deleted, departed.trashed)


async def _reason_to_keep(lock: CloneLock, path: Path, label: RescueLabel) -> str | None:
    """Return why this worktree needs a rescue, or None. Raises GitError, OSError if that is unknown."""
    checkout = await open_checkout(lock, path)
    if isinstance(checkout, Missing):
        return reasons.no_worktree_here(checkout.why)
    if is_unfinished(checkout.admin):
        return reasons.UNFINISHED_WORKTREE
    if (flagged := await flagged_file(checkout)) is not None:
        return reasons.hidden_edits(flagged)
    return await work_only_here(checkout, label)


async def _delete_branch(lock: CloneLock, path: Path, branch: str, rescued: Rescued | None, remote: Remote) -> bool:
    """Delete the local branch; return whether it was deleted. A failure is logged and does not stop the removal."""
    clone = lock.clone
    try:
        tip = await clone.commit_at(refs.local(branch))
        if tip is None or not await _is_elsewhere(clone, branch, tip, rescued, remote):
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


async def rescue_first(lock: CloneLock, path: Path, label: RescueLabel, *, published: bool = True) -> Secured:
    """Rescue the work at `path`; return the rescue of an earlier call with this label if nothing was added since.

    Without `published` no commit counts as published. Raises GitError, OSError when it cannot be told what there is to
    rescue.
    """
    clone = lock.clone
    earlier = await _earlier(clone, label)
    try:
        _open_up(path)
        found, why = await save_rescue(lock, path, label, published=published)
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno not in _BROKEN:
            raise
        return await _hold_head(clone, path, label, published), f"it cannot be read: {error}"
    if earlier is None or why is not None:
        return found, why
    if found is not None and found.ref != earlier.ref:
        elsewhere = ("--not", "--remotes=origin") if published else ()
        # One of the new commits is the rescue itself.
        if found.files or await clone.count(found.sha, f"^{earlier.sha}", *elsewhere) > 1:
            return found, None
        await drop_rescue(lock, found.ref)
    return earlier, None


def unlink_worktree(lock: CloneLock, path: Path, at: datetime, *, whole: bool) -> Unlinked:
    """Move what is at `path` away, after its rescue: to the trash, or with `whole` to DATA_DIR/kept.

    After it was cut off it can be repeated with the same `at`; what is at `path` then is not kept again. Raises OSError
    (a mount, another file system) with everything where it was.
    """
    clone = lock.clone
    known = git_folders(clone, path)
    if isinstance(sandbox := clone.git.sandbox, Bwrap):
        sandbox.enforcement.remove_group(name_of(sandbox.private_folder(real_path(path))))
    place = trash.kept_folder(clone.data_dir) / trash.kept_name(path, at)
    git_state = place.with_name(place.name + trash.GIT_STATE)
    kept_before = os.path.lexists(place)
    if whole and kept_before and os.path.lexists(path):
        raise FileExistsError(f"another directory is kept as {place.name}")
    whole = whole or kept_before
    moved: list[tuple[Path, Path]] = []
    progress_file(clone.data_dir, path).unlink(missing_ok=True)

    def away(folder: Path, kept: Path) -> None:
        to = kept if whole and not os.path.lexists(kept) else trash.place_for(clone.data_dir, folder)
        if os.path.lexists(folder):
            trash.move(folder, to)
            moved.append((folder, to))

    try:
        away(path, place)
        reached("trashed")
        for folder, name in known:
            away(folder, git_state / name)
        reached("entry-dropped")
        if any(os.path.lexists(folder) for folder in (path, *(folder for folder, _ in known))):
            raise FileExistsError("something made it again while it was taken away")
    except OSError:
        for folder, to in reversed(moved):
            with suppress(OSError):
                trash.move(to, folder)
        raise
    if whole and not os.path.lexists(place):
        place.mkdir(parents=True)
    trashed = tuple(to for _, to in moved if to != place and git_state not in to.parents)
    return Unlinked(place if whole else None, trashed)


def git_folders(clone: Clone, path: Path) -> list[tuple[Path, str]]:
    """Return git's folders for the worktree at `path`, each with its name beside a directory that is kept whole."""
    known = [(admin, f"worktrees/{admin.name}") for admin in folders_of(clone.path, path)]
    if isinstance(sandbox := clone.git.sandbox, Bwrap):
        known.append((sandbox.private_folder(real_path(path)), "private"))
    return known


async def _earlier(clone: Clone, label: RescueLabel) -> Rescued | None:
    """Return the rescue of an attempt that was cut off after the directory was moved."""
    ref = refs.rescue_ref(str(label.worktree_id), label.at)
    sha = await clone.commit_at(ref)
    kept = await read_rescue(clone, sha) if sha is not None else None
    return Rescued(ref, sha, kept.files, kept.commits) if sha is not None and kept is not None else None


async def _hold_head(clone: Clone, path: Path, label: RescueLabel, published: bool) -> Rescued | None:
    """Make a ref for the commit that only the HEAD of a broken worktree names: git deletes what no ref reaches."""
    ref = refs.rescue_ref(str(label.worktree_id), label.at)
    for admin in folders_of(clone.path, path):
        head = recorded(admin / "HEAD")
        if (
            refs.is_commit(head)
            and await clone.commit_at(head) is not None
            and (commits := await (clone.unpublished(head) if published else clone.count(head)))
        ):
            if await clone.commit_at(ref) != head:
                await clone.run("update-ref", ref, head, "0" * len(head))
            return Rescued(ref, head, 0, commits)
    return None


def _open_up(path: Path) -> None:
    """Give the owner all permissions on the directory: without them it cannot be examined."""
    if path.is_dir() and not path.is_symlink():
        path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IRWXU)
