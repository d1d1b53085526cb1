"""A clone's objects and refs are packed, so that git stays fast in it, and what nothing reaches any more is deleted.

The files of the default branch are also kept in a pack without compression and deltas: a checkout of a large repository
takes about half the time with it.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import structlog

from bot import refs
from bot.sandbox.view import PUBLISHED
from bot.tree.clone.admin import admin_directories, recorded
from bot.tree.clone.arriving import apart, move_in, pack_refs, writing_apart
from bot.tree.clone.clone import PACKED, Clone, CloneLock, clone_lock
from bot.tree.clone.importing import IMPORTING
from bot.tree.clone.published import publish_tips, writing_published
from bot.tree.git.runner import Options

LARGE_REPOSITORY_FILES = 2_000
"""From here on a checkout takes so long that disk is spent on it."""
# For raw files, and for the new packs beside the old ones: a checkout has seldom five times the size of its pack.
_SPACE = 5
_WHOLE_EVERY_SECONDS = 7 * 86400
_TIMEOUT_SECONDS = 3600.0
_FILES = "threadtree: files of the default branch"
# So many packs and loose objects make git slower. To pack the clone's own objects, git reads all history.
_MANY_FILES = 100
_log = structlog.get_logger()


async def pack(lock: CloneLock) -> None:
    """Pack what came since the last time. Raises GitError, OSError."""
    clone = lock.clone
    # Nothing is imported now: the clone is locked.
    own, published = clone.path / "objects", clone.path / PUBLISHED
    for left in await asyncio.to_thread(_kept_packs, own, IMPORTING):
        left.unlink(missing_ok=True)
    await publish_tips(lock)
    await pack_refs(clone)
    # These packs alone, and no ref: refs name objects of the clone's own too.
    await _git(clone, "repack", "-d", "-n", "-q", "--geometric=2", environment={"GIT_OBJECT_DIRECTORY": str(published)})
    if sum(1 for _ in own.glob("??/*")) + sum(1 for _ in own.glob("pack/*.pack")) > _MANY_FILES:
        await _pack_own(clone)
    await asyncio.to_thread(_prefer_files, clone)


async def forget_fetched(lock: CloneLock, wanted: Collection[str]) -> None:
    """Drop the copies of pull requests' heads except of the `wanted` refs of the remote. Raises GitError, OSError."""
    clone, kept = lock.clone, {refs.fetched(ref) for ref in wanted}
    gone = (f"delete {ref}\n" for ref in await clone.refs(refs.FETCHED_PREFIX) if ref not in kept)
    await _git(clone, "update-ref", "--stdin", given="".join(gone).encode())


async def pack_whole(lock: CloneLock, default_branch: str | None, reserve_bytes: int) -> bool:
    """Delete what nothing reaches, and pack the files of the default branch anew, once a week; False if not due.

    Takes minutes for a large repository. Raises GitError, OSError.
    """
    clone, stamp = lock.clone, lock.clone.path / PACKED
    packed_at = await asyncio.to_thread(_time_of, stamp)
    is_recent = packed_at is not None and time.time() - packed_at < _WHOLE_EVERY_SECONDS
    if is_recent or not await asyncio.to_thread(_has_room, clone, reserve_bytes):
        return False
    before = await asyncio.to_thread(_kept_packs, clone.path / PUBLISHED, _FILES)
    now = await _pack_files(clone, default_branch, clone.path / PUBLISHED)
    if now is not None:
        for old in before:
            if old != now:
                old.unlink(missing_ok=True)  # an ordinary pack from now on
    if packed_at is not None:  # a new clone is packed well
        # The clone's own first: then nothing is in both. git leaves out of a pack what another store has.
        await _pack_own(clone)
        await _pack_published(clone)
    await asyncio.to_thread(_prefer_files, clone)
    stamp.touch()
    _log.info("clone-packed", clone=str(clone.path), files=now is not None)
    return True


async def pack_new(clone: Clone, default_branch: str | None, reserve_bytes: int) -> None:
    """Pack the files of a new clone, as `pack_whole`, but without the lock: people wait for worktrees there.

    Raises GitError, OSError.
    """
    if not await asyncio.to_thread(_has_room, clone, reserve_bytes):
        return
    async with apart(clone) as store:
        await _pack_files(clone, default_branch, store)
        async with clone_lock(clone, early=True):
            await move_in(clone, store)
            await asyncio.to_thread(_prefer_files, clone)
            (clone.path / PACKED).touch()


def _has_room(clone: Clone, reserve_bytes: int) -> bool:
    packs = [*clone.path.glob("objects/pack/pack-*.pack"), *clone.path.glob(f"{PUBLISHED}/pack/pack-*.pack")]
    needed = _SPACE * sum(pack.stat().st_size for pack in packs)
    return shutil.disk_usage(clone.path).free - reserve_bytes >= needed


async def _pack_own(clone: Clone) -> None:
    # Without a sandbox an agent's git may have written what no ref reaches yet.
    await _repack(clone, "now" if clone.git.sandbox.isolates else "1.day.ago", {})


async def _pack_published(clone: Clone) -> None:
    """Keep what a ref reached at the last time until no worktree was made as long ago: it may use that.

    git finds out what nothing reaches when it packs, and keeps it in a pack with the time of its former pack or file.
    """
    store = clone.path / PUBLISHED
    for file in (*store.glob("??/*"), *store.glob("pack/*.pack")):
        if not file.with_suffix(".mtimes").exists():
            file.touch()
    made = (_time_of(admin / "commondir") for admin in admin_directories(clone.path))
    oldest = min((int(at) for at in made if at is not None), default=None)
    # git deletes what is as old as this second, too.
    expire = "now" if oldest is None else str(oldest - 1)
    await _repack(clone, expire, writing_published(clone.path))


async def _repack(clone: Clone, expire: str, environment: Mapping[str, str]) -> None:
    """Pack a store whole, and delete what nothing reaches since this time."""
    packing = ("repack", "--cruft", f"--cruft-expiration={expire}", "-d", "-l", "-n", "-q")
    # The large pack repeats the objects of the pack of files, because other objects there are deltas of them.
    for command in ((*packing, "--pack-kept-objects"), ("prune", f"--expire={expire}")):
        await _git(clone, *command, environment=environment)


async def _git(
    clone: Clone, *args: str, given: bytes | None = None, environment: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    options: Options = {"input": given, "environment": environment, "timeout_seconds": _TIMEOUT_SECONDS}
    return (await clone.git.on_clone(clone.path, *args, **options)).stdout


async def _pack_files(clone: Clone, branch: str | None, store: Path) -> Path | None:
    """Write the pack of the files of a large repository's default branch; return its `.keep` file."""
    tip = await clone.commit_at(refs.remote(branch)) if branch is not None else None
    if tip is None:
        return None
    objects = await _git(clone, "rev-list", "--objects", "--no-walk", tip)
    if objects.count(b"\n") < LARGE_REPOSITORY_FILES:
        return None
    raw = ("--no-reuse-object", "--window=0", "--depth=0", "--compression=0")
    place, writing = store / "pack" / "pack", writing_apart(clone, store)
    packing = ("pack-objects", "-q", *raw, str(place))
    name = os.fsdecode(await _git(clone, *packing, given=objects, environment=writing)).strip()
    keep = place.with_name(f"pack-{name}.keep")
    keep.write_text(f"{_FILES}\n")
    return keep


def _prefer_files(clone: Clone) -> None:
    """Make the pack of files the newest: git takes an object from there first."""
    for keep in _kept_packs(clone.path / PUBLISHED, _FILES):
        keep.with_suffix(".pack").touch()


def _kept_packs(store: Path, words: str) -> list[Path]:
    return [keep for keep in store.glob("pack/pack-*.keep") if recorded(keep) == words]


def _time_of(file: Path) -> float | None:
    with suppress(FileNotFoundError):
        return file.stat().st_mtime
    return None
