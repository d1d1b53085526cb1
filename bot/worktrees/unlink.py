"""A worktree is taken from its path: rescued first, then renamed away with git's folders, whatever its shape.

git's own `worktree remove` refuses some of the shapes, and looks at all worktrees of the clone each time.
"""

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import assert_never

from bot.clones import trash
from bot.clones.admin import (
    Missing,
    admin_directory,
    holders,
    is_unfinished,
    pointing_to,
    real_path,
    recorded,
)
from bot.clones.clone import Clone, CloneLock
from bot.failpoints import reached
from bot.git import refs
from bot.rescue.message import RescueLabel
from bot.rescue.restore import progress_file
from bot.rescue.save import KeepDirectory, NothingToRescue, Rescued, save_rescue
from bot.rescue.stored import drop_rescue, read_rescue
from bot.sandbox.cage import Cage
from bot.sandbox.view import name_of

# What broken files raise, and a full disk or too many open files do not.
_BROKEN = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EINVAL, errno.ENXIO}
)


@dataclass(frozen=True, slots=True)
class Unlinked:
    """Nothing is at the path, and git has no entry for it. `trashed`: what must be deleted.

    `kept`: the directory, if it was kept whole; git's folders for it are beside it in `<kept>.git`.
    """

    kept: Path | None
    trashed: tuple[Path, ...]


async def rescue_first(
    lock: CloneLock, path: Path, label: RescueLabel, *, published: bool = True
) -> Rescued | NothingToRescue | KeepDirectory:
    """Rescue the work at `path`; return the rescue of an earlier call with this label if nothing was added since.

    Without `published` no commit counts as published. Raises GitError, OSError when it cannot be told what there is to
    rescue.
    """
    clone = lock.clone
    earlier = await _earlier(clone, label)
    try:
        _open_up(path)
        found = await save_rescue(lock, path, label, published=published)
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno not in _BROKEN:
            raise
        return KeepDirectory(f"it cannot be read: {error}", await _hold_head(clone, path, label, published))
    if earlier is None or isinstance(found, KeepDirectory):
        return found
    if isinstance(found, Rescued) and found.ref != earlier.ref:
        if await _adds(clone, found, earlier, published):
            return found
        await drop_rescue(lock, found.ref)
    return earlier


async def _adds(clone: Clone, found: Rescued, earlier: Rescued, published: bool) -> bool:
    """Return whether a rescue holds a commit or a file's content that neither the earlier one nor its own HEAD has."""
    kept, before = await read_rescue(clone, found.sha), await read_rescue(clone, earlier.sha)
    if kept is None or before is None:
        return True
    own = 2 if kept.staged else 1
    elsewhere = ("--not", "--remotes=origin") if published else ()
    if await clone.count(found.sha, f"^{earlier.sha}", *elsewhere) > own:
        return True
    new, known = await _blobs(clone, found.sha, kept.staged), await _blobs(clone, earlier.sha, before.staged, kept.head)
    return not new <= known


async def _blobs(clone: Clone, *commits: str | None) -> set[str]:
    """Return the contents of all files of these commits, as object names."""
    found: set[str] = set()
    for commit in filter(None, commits):
        listed = await clone.run("ls-tree", "-r", "-z", "--full-tree", commit)
        found |= {line.split("\t", 1)[0] for line in listed.fields}  # with the mode: a link is no file
    return found


def rescued_commit(found: Rescued | NothingToRescue | KeepDirectory) -> Rescued | None:
    """Return the rescue commit, if there is one."""
    match found:
        case Rescued():
            return found
        case KeepDirectory(rescued=rescued):
            return rescued
        case NothingToRescue():
            return None
        case _:
            assert_never(found)


def unlink_worktree(lock: CloneLock, path: Path, at: datetime, *, whole: bool) -> Unlinked:
    """Move what is at `path` away, after its rescue: to the trash, or with `whole` to DATA_DIR/kept.

    After it was cut off it can be repeated with the same `at`. Raises OSError (a mount, another file system) with
    everything where it was.
    """
    clone = lock.clone
    known = [(admin, f"worktrees/{admin.name}") for admin in admin_directories_of(clone.path, path)]
    if isinstance(cage := clone.git.cage, Cage):
        private = cage.private_folder(real_path(path))
        cage.enforcement.remove_group(name_of(private))
        known.append((private, "private"))
    place = trash.kept_folder(clone.data_dir) / trash.kept_name(path, at)
    git_state = place.with_name(place.name + trash.GIT_STATE)
    whole = whole or os.path.lexists(place)
    moved: list[tuple[Path, Path]] = []
    progress_file(clone.data_dir, path).unlink(missing_ok=True)

    def away(folder: Path, name: str | None) -> None:
        to = trash.place_for(clone.data_dir, folder) if not whole else place if name is None else git_state / name
        if os.path.lexists(folder):
            trash.move(folder, to)
            moved.append((folder, to))

    try:
        away(path, None)
        reached("trashed")
        for folder, name in known:
            away(folder, name)
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
    return Unlinked(place if whole else None, () if whole else tuple(to for _, to in moved))


async def _earlier(clone: Clone, label: RescueLabel) -> Rescued | None:
    """Return the rescue of an attempt that was cut off after the directory was moved."""
    ref = refs.rescue_ref(str(label.worktree_id), label.at)
    sha = await clone.commit_at(ref)
    kept = await read_rescue(clone, sha) if sha is not None else None
    return Rescued(ref, sha, kept.files, kept.commits) if sha is not None and kept is not None else None


async def _hold_head(clone: Clone, path: Path, label: RescueLabel, published: bool) -> Rescued | None:
    """Make a ref for the commit that only the HEAD of a broken worktree names: git deletes what no ref reaches."""
    ref = refs.rescue_ref(str(label.worktree_id), label.at)
    for admin in admin_directories_of(clone.path, path):
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
    try:
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
            path.chmod(stat.S_IMODE(mode) | stat.S_IRWXU)
    except FileNotFoundError:
        return


def admin_directories_of(clone: Path, path: Path) -> list[Path]:
    """Return git's folders for the worktree at `path`, whatever they hold: one, if it and `path` name each other."""
    try:
        linked = admin_directory(clone, path)
    except OSError:
        linked = Missing("it cannot be read")
    if not isinstance(linked, Missing):
        return [linked]
    named = recorded(path / ".git").removeprefix("gitdir:").strip()
    return [admin for admin in pointing_to(clone, path) if _belongs(admin, path, named)]


def is_checked_out_elsewhere(clone: Path, path: Path, branch: str) -> bool:
    """Return whether another worktree than the one at `path` has this branch. It reads the HEAD of all of them."""
    found = holders(clone, branch)
    own = admin_directories_of(clone, path) if found else []
    return any(admin not in own for admin in found)


def _belongs(admin: Path, path: Path, named: str) -> bool:
    pointer = recorded(admin / "gitdir")
    if pointer:
        return pointer == str(real_path(path) / ".git")
    # It names no place any more. No worktree is being made now: the clone is locked.
    return str(admin) == named or is_unfinished(admin)
