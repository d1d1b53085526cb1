"""Spares: checkouts of the default branch kept in DATA_DIR/spares, ready for a large repository's next conversation.

A spare has no branch, no row and no files of a cage, and only the bot's own git ever worked in it. A new worktree takes
one over by a rename; what differs is then checked out.
"""

import asyncio
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import structlog

from bot.clones import entries, trash
from bot.clones.admin import Missing, admin_directory, real_path, recorded, write, write_head
from bot.clones.clone import Clone, CloneLock, clone_lock
from bot.clones.start import Checkout, start_branch
from bot.failpoints import reached
from bot.sandbox.view import private_folder
from bot.worktrees.unlink import unlink_worktree

CHECKOUT_TIMEOUT_SECONDS = 1800.0
SETTLE_SECONDS = 1.0
"""git compares the times of files in seconds: those of a spare are in the past when it is verified."""
# Nobody waits for a spare, and turns have the other processors and the disk meanwhile.
_UNHURRIED = ("-c", "checkout.workers=1")
# The reason of git's lock of a finished one.
_SPARE = "threadtree: spare"
_log = structlog.get_logger()


def spares_folder(clone: Clone) -> Path:
    """Return the folder of a clone's spares."""
    return clone.data_dir / "spares" / clone.path.parent.name / clone.path.name.removesuffix(".git")


def spares_on_disk(clone: Clone) -> list[Path]:
    """Return all spares of a clone, also unfinished and broken ones."""
    try:
        return sorted(spares_folder(clone).iterdir())
    except FileNotFoundError:
        return []


async def take_spare(lock: CloneLock, path: Path, checkout: Checkout) -> str | None:
    """Move a finished spare to the free `path`, with HEAD as `checkout` says; return the commit of its files.

    None if there is no spare. It counts as unfinished until it is marked as live. Raises GitError, OSError.
    """
    clone = lock.clone
    found = next(((spare, admin) for spare in spares_on_disk(clone) if (admin := _finished(clone, spare))), None)
    if found is None:
        return None
    spare, admin = found
    commit = recorded(admin / "HEAD")
    _lock_as(admin, entries.UNFINISHED[0])
    write(admin / "gitdir", f"{real_path(path)}/.git")
    reached("spare-taken")
    trash.move(spare, path)
    reached("spare-moved")
    write_head(admin, await start_branch(lock, checkout))
    return commit


async def is_pristine(clone: Clone, path: Path) -> bool:
    """Return whether a worktree holds the files of its commit and nothing else, also no ignored file.

    Raises GitError, OSError.
    """
    flags = ("--porcelain=v1", "-z", "--untracked-files=all", "--ignored=traditional", "--ignore-submodules=none")
    return not (await clone.on_worktree(path, "status", *flags)).stdout


async def keep_spares(clone: Clone, wanted: int, commit: str) -> None:
    """Have exactly `wanted` spares at this commit. Checkouts are made without the clone's lock: turns go on meanwhile.

    Does nothing while another process does the same. Raises GitError, OSError.
    """
    before = spares_on_disk(clone)
    if len(before) == wanted and all(_finished(clone, one) and _commit_of(clone, one) == commit for one in before):
        return
    with _upkeep(clone) as is_mine:
        if not is_mine:
            return
        async with clone_lock(clone) as lock:
            finished = [spare for spare in spares_on_disk(clone) if _finished(clone, spare)]
            stay = finished[:wanted]
            trashed = [gone for spare in spares_on_disk(clone) if spare not in stay for gone in _drop(lock, spare)]
            behind = [spare for spare in stay if _commit_of(clone, spare) != commit]
            for spare in behind:
                if isinstance(admin := admin_directory(clone.path, spare), Path):
                    _lock_as(admin, entries.UNFINISHED[0])
                    write_head(admin, commit)
            new = [spares_folder(clone) / f"spare-{secrets.token_hex(8)}" for _ in range(wanted - len(stay))]
            for spare in new:
                spare.parent.mkdir(parents=True, exist_ok=True)
                entries.register(lock, spare, commit)
        reached("spare-registered")
        for spare in (*behind, *new):
            reset = (*_UNHURRIED, "reset", "--quiet", "--hard")
            await clone.on_worktree(spare, *reset, timeout_seconds=CHECKOUT_TIMEOUT_SECONDS)
            await asyncio.sleep(SETTLE_SECONDS)
            verified_at = time.time()
            pristine = await is_pristine(clone, spare)
            async with clone_lock(clone) as lock:
                trashed += _finish(lock, spare, verified_at) if pristine else _drop(lock, spare)
            _log.info("spare-ready" if pristine else "spare-not-pristine", spare=str(spare), commit=commit)
    for place in trashed:
        await trash.delete(place)


async def drop_spares(clone: Clone) -> int:
    """Drop all spares that no process is making; return the bytes freed. Raises OSError."""
    if not spares_on_disk(clone):
        return 0
    with _upkeep(clone) as is_mine:
        if not is_mine:
            return 0
        async with clone_lock(clone) as lock:
            trashed = [place for spare in spares_on_disk(clone) for place in _drop(lock, spare)]
    return sum([await trash.delete(place) for place in trashed])


@contextmanager
def _upkeep(clone: Clone) -> Iterator[bool]:
    """Yield whether no other process makes spares of this clone; the kernel frees the lock of a killed one."""
    folder = spares_folder(clone)
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder.with_name(f"{folder.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)


def _finish(lock: CloneLock, spare: Path, verified_at: float) -> tuple[Path, ...]:
    """Mark a checkout as a spare, without private state of a cage: that belongs to a path. Return what must be deleted.

    Only the bot's git worked there, so the clone may have the index that it wrote.
    """
    clone = lock.clone
    admin = admin_directory(clone.path, spare)
    if isinstance(admin, Missing):
        return _drop(lock, spare)
    trashed: tuple[Path, ...] = ()
    if (cage := clone.git.cage) is not None:
        private = private_folder(cage.data_dir, real_path(spare))
        (private / "state" / "index").replace(admin / "index")
        cage.enforcement.remove_group(private.name)
        gone = trash.move_to_trash(clone.data_dir, private)
        trashed = (gone,) if gone is not None else ()
    # Else git would read again each file that is as old as the index: it may have been changed in the same second.
    os.utime(admin / "index", (verified_at, verified_at))
    _lock_as(admin, _SPARE)
    return trashed


def _drop(lock: CloneLock, spare: Path) -> tuple[Path, ...]:
    return unlink_worktree(lock, spare, datetime.now(UTC), whole=False).trashed


def _finished(clone: Clone, spare: Path) -> Path | None:
    """Return the folder in the clone of a finished spare; None for what else lies there."""
    admin = admin_directory(clone.path, spare)
    return admin if isinstance(admin, Path) and recorded(admin / "locked") == _SPARE else None


def _commit_of(clone: Clone, spare: Path) -> str | None:
    admin = admin_directory(clone.path, spare)
    return recorded(admin / "HEAD") if isinstance(admin, Path) else None


def _lock_as(admin: Path, reason: str) -> None:
    (admin / "locked").write_text(f"{reason}\n")
