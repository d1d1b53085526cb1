"""While an agent works, all branches of its clone are brought up to date: no turn waits for what it does not need.

What somebody pushed can take minutes to arrive, and other turns need the clone's lock meanwhile. So objects arrive in
a folder of their own, without the lock. It is taken only to move them to the published ones, and to fetch once more:
that finds everything here and moves the refs.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from bot import failpoints
from bot.clones.clone import Clone, clone_lock, wait_for_lock
from bot.clones.fetch import FETCH, fetch
from bot.git.errors import GitError
from bot.sandbox.view import PUBLISHED

_FOLDER = "arriving"
_log = structlog.get_logger()


async def fetch_beside(clone: Clone) -> None:
    """Bring all branches up to date. What fails is logged: the next turn begins anew."""
    try:
        await _fetch_all(clone)
    except (GitError, OSError) as problem:
        _log.warning("branches-not-fetched", clone=str(clone.path), problem=str(problem))


async def _fetch_all(clone: Clone) -> None:
    async with apart(clone) as arriving:
        if await _receive(clone, arriving):
            failpoints.reached("branches-received")
            async with clone_lock(clone) as lock:
                await move_in(clone, arriving)
                failpoints.reached("branches-moved-in")
                await fetch(lock)


@asynccontextmanager
async def apart(clone: Clone) -> AsyncIterator[Path]:
    """Yield an empty store of objects beside those of the clone, which one task at a time has. Raises OSError."""
    folder = clone.path / _FOLDER
    folder.mkdir(exist_ok=True)
    held = await wait_for_lock(folder, is_directory=True)  # another turn may be at it
    arriving = folder / "objects"
    try:
        await asyncio.to_thread(shutil.rmtree, arriving, ignore_errors=True)  # of a process that was killed
        (arriving / "pack").mkdir(parents=True)
        yield arriving
    finally:
        os.close(held)


def writing_apart(clone: Clone, store: Path) -> dict[str, str]:
    """Return the environment of a git that sees the clone's objects and writes to this store."""
    stores = f"{clone.path / PUBLISHED}:{clone.path / 'objects'}"
    return {"GIT_OBJECT_DIRECTORY": str(store), "GIT_ALTERNATE_OBJECT_DIRECTORIES": stores}


async def _receive(clone: Clone, arriving: Path) -> bool:
    """Receive what the clone lacks for the remote's branches; return whether one of them, or a tag, has changed."""
    environment = writing_apart(clone, arriving)
    heard = bytearray()
    # It receives all objects, and tells what it would do to the refs: https://git-scm.com/docs/git-fetch#_output
    await clone.git.on_clone(clone.path, *FETCH, "--dry-run", environment=environment, on_stderr=heard.extend)
    return b" -> " in heard


async def move_in(clone: Clone, arriving: Path) -> None:
    """Move these objects to the published ones, under the clone's lock. Raises OSError."""
    await asyncio.to_thread(_move, arriving, clone.path / PUBLISHED)


def _move(arriving: Path, store: Path) -> None:
    """Move the objects; a pack comes before its index, by which git finds it."""
    files = (file for file in arriving.rglob("*") if file.is_file())
    for file in sorted(files, key=lambda file: file.suffix == ".idx"):
        place = store / file.relative_to(arriving)
        place.parent.mkdir(exist_ok=True)
        file.rename(place)
    shutil.rmtree(arriving)
