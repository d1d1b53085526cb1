"""A clone's objects and refs are packed, so that git stays fast in it, and what nothing reaches any more is deleted.

The files of the default branch are also kept in a pack without compression and deltas: a checkout of a large repository
takes about half the time with it.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import structlog

from bot.clones.admin import admin_directories, real_path, recorded
from bot.clones.clone import Clone, CloneLock
from bot.clones.holding import NOTE, hold, note_tips
from bot.clones.importing import IMPORTING
from bot.git import refs
from bot.sandbox.view import share_refs

LARGE_REPOSITORY_FILES = 2_000
"""From here on a checkout takes so long that disk is spent on it."""
# For raw files, and for the new packs beside the old ones: a checkout has seldom five times the size of its pack.
_SPACE = 5
_WHOLE_EVERY_SECONDS = 7 * 86400
_LOOSE_REFS = 20
_TIMEOUT_SECONDS = 3600.0
_FILES = "threadtree: files of the default branch"
# Its time tells when the clone was packed whole.
_STAMP = "threadtree-packed"
# Without a cage an agent's git may have written what no ref reaches yet.
_STILL_IN_USE = "1.day.ago"
_log = structlog.get_logger()


async def pack(lock: CloneLock) -> None:
    """Pack what came since the last time, and drop holds that nothing needs. Raises GitError, OSError."""
    clone = lock.clone
    # Nothing is imported now: the clone is locked.
    for left in await asyncio.to_thread(_kept_packs, clone, IMPORTING):
        left.unlink(missing_ok=True)
    await note_tips(lock)
    await _release(lock)
    await _pack_refs(clone)
    await _git(clone, "repack", "-d", "-l", "-q", "--geometric=2")
    await asyncio.to_thread(_prefer_files, clone)


async def forget_fetched(lock: CloneLock, wanted: Collection[str]) -> None:
    """Drop the copies of pull requests' heads except of the `wanted` refs of the remote. Raises GitError, OSError.

    Their commits are held for the worktrees that may have seen them.
    """
    clone, kept = lock.clone, {refs.fetched(ref) for ref in wanted}
    gone = {ref: sha for ref, sha in (await clone.refs(refs.FETCHED_PREFIX)).items() if ref not in kept}
    await hold(clone, set(gone.values()), *(f"delete {ref}" for ref in gone))


async def pack_whole(lock: CloneLock, default_branch: str | None, reserve_bytes: int) -> bool:
    """Delete what nothing reaches, and pack the files of the default branch anew, once a week; False if not due.

    Takes minutes for a large repository. Raises GitError, OSError.
    """
    clone, stamp = lock.clone, lock.clone.path / _STAMP
    packed_at = await asyncio.to_thread(_time_of, stamp)
    room = shutil.disk_usage(clone.path).free - reserve_bytes - _SPACE * await asyncio.to_thread(_packed_bytes, clone)
    if room < 0 or (packed_at is not None and time.time() - packed_at < _WHOLE_EVERY_SECONDS):
        return False
    before = await asyncio.to_thread(_kept_packs, clone, _FILES)
    now = await _pack_files(clone, default_branch)
    if now is not None:
        for old in before:
            if old != now:
                old.unlink(missing_ok=True)  # an ordinary pack from now on
    if packed_at is not None:  # a new clone is packed well
        expire = "now" if clone.git.cage.isolates else _STILL_IN_USE
        # The large pack repeats the objects of the pack of files, because other objects there are deltas of them.
        await _git(clone, "repack", "-A", "-d", "-l", "-q", "--pack-kept-objects", f"--unpack-unreachable={expire}")
        await _git(clone, "prune", f"--expire={expire}")
    await asyncio.to_thread(_prefer_files, clone)
    stamp.touch()
    _log.info("clone-packed", clone=str(clone.path), files=now is not None)
    return True


async def _git(clone: Clone, *args: str, given: bytes | None = None) -> bytes:
    done = await clone.git.on_clone(clone.path, *args, input=given, timeout_seconds=_TIMEOUT_SECONDS)
    return done.stdout


async def _pack_files(clone: Clone, branch: str | None) -> Path | None:
    """Write the pack of the files of a large repository's default branch; return its `.keep` file."""
    tip = await clone.commit_at(refs.remote(branch)) if branch is not None else None
    if tip is None:
        return None
    objects = await _git(clone, "rev-list", "--objects", "--no-walk", tip)
    if objects.count(b"\n") < LARGE_REPOSITORY_FILES:
        return None
    raw = ("--no-reuse-object", "--window=0", "--depth=0", "--compression=0")
    place = clone.path / "objects" / "pack" / "pack"
    name = os.fsdecode(await _git(clone, "pack-objects", "-q", *raw, str(place), given=objects)).strip()
    keep = place.with_name(f"pack-{name}.keep")
    keep.write_text(f"{_FILES}\n")
    return keep


def _prefer_files(clone: Clone) -> None:
    """Make the pack of files the newest: git takes an object from there first."""
    for keep in _kept_packs(clone, _FILES):
        keep.with_suffix(".pack").touch()


def _kept_packs(clone: Clone, words: str) -> list[Path]:
    return [keep for keep in (clone.path / "objects" / "pack").glob("pack-*.keep") if recorded(keep) == words]


def _packed_bytes(clone: Clone) -> int:
    return sum(pack.stat().st_size for pack in (clone.path / "objects" / "pack").glob("pack-*.pack"))


def _time_of(file: Path) -> float | None:
    with suppress(FileNotFoundError):
        return file.stat().st_mtime
    return None


async def _release(lock: CloneLock) -> None:
    """Drop the holds of commits that other refs reach, and those from before the oldest worktree."""
    clone = lock.clone
    held = {ref: sha for ref, sha in (await clone.refs(refs.HELD_PREFIX)).items() if ref != NOTE}
    if not held:
        return
    oldest = await asyncio.to_thread(_oldest_worktree, clone)
    given = "".join(f"{sha}\n" for sha in sorted(set(held.values()))).encode()
    others = ("--not", "--single-worktree", *refs.ALL_BUT_HELD)
    needed = set(os.fsdecode(await _git(clone, "rev-list", "--stdin", *others, given=given)).split())
    gone = [ref for ref, sha in held.items() if sha not in needed or refs.held_since(ref) < oldest]
    await hold(clone, (), *(f"delete {ref}" for ref in gone))


def _oldest_worktree(clone: Clone) -> str:
    """Return the day on which the oldest worktree was made, as in the name of a hold; without worktrees a late one."""
    made = (_time_of(admin / "commondir") for admin in admin_directories(clone.path))
    times = [at for at in made if at is not None]
    return time.strftime("%Y%m%d", time.gmtime(min(times))) if times else "9"


async def _pack_refs(clone: Clone) -> None:
    """Pack the refs, after each cage has got those that it sees."""
    loose = await asyncio.to_thread(lambda: sum(file.is_file() for file in (clone.path / "refs").rglob("*")))
    if loose < _LOOSE_REFS:
        return
    shared = await _git(clone, "for-each-ref", "--format=%(objectname) %(refname)", "refs/remotes", "refs/tags")
    for common in await asyncio.to_thread(_cages, clone):
        if not await asyncio.to_thread(share_refs, common, shared):
            _log.info("refs-not-packed", clone=str(clone.path), cage=str(common))
            return
    await clone.run("pack-refs", "--all", "--prune")


def _cages(clone: Clone) -> list[Path]:
    """Return the folders that stand for the clone in the cages of its worktrees."""
    if not clone.git.cage.isolates:
        return []
    worktrees = [Path(recorded(admin / "gitdir")).parent for admin in admin_directories(clone.path)]
    found = [clone.git.cage.private_folder(real_path(path)) / "common" for path in worktrees]
    return [common for common in found if common.is_dir()]
