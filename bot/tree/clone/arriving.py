"""While an agent works, all branches of its clone are brought up to date: no turn waits for what it does not need.

What somebody pushed can take minutes to arrive, and other turns need the clone's lock meanwhile. So objects arrive in
a folder of their own, without the lock. It is taken only to move them to the published ones, and to fetch once more:
that finds everything here and moves the refs.

A new clone begins with the newest commits alone. Its older history arrives in the same way; whoever takes the lock
waits for it, and fetches it where that failed or was cut off (`bot.tree.clone.fetch.complete`).
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from bot import failpoints
from bot.sandbox.view import PUBLISHED, SHALLOW, unblock
from bot.tree.clone.admin import admin_directories, recorded
from bot.tree.clone.clone import ARRIVING, Clone, clone_lock, wait_for_lock
from bot.tree.clone.fetch import FETCH, everything, fetch, show_history_inside
from bot.tree.git.errors import GitError
from bot.tree.git.runner import Options

_LOOSE_REFS = 200
_SANDBOX_SECONDS = 10.0
_log = structlog.get_logger()


async def fetch_beside(clone: Clone) -> None:
    """Bring all branches up to date. What fails is logged: the next turn begins anew."""
    try:
        await _fetch_all(clone)
    except (GitError, OSError) as problem:
        _log.warning("branches-not-fetched", clone=str(clone.path), problem=str(problem))


async def _fetch_all(clone: Clone) -> None:
    async with apart(clone) as arriving:
        lacked_history = clone.is_shallow
        has_changed, is_whole = await _receive(clone, arriving)
        if has_changed or lacked_history:
            failpoints.reached("branches-received")
            async with clone_lock(clone, early=True) as lock:
                await move_in(clone, arriving)
                failpoints.reached("branches-moved-in")
                if lacked_history and is_whole:
                    (clone.path / SHALLOW).unlink(missing_ok=True)
                    failpoints.reached("history-arrived")
                    await show_history_inside(clone)
                await fetch(lock)
                if lacked_history:
                    await pack_refs(lock.clone)


@asynccontextmanager
async def apart(clone: Clone) -> AsyncIterator[Path]:
    """Yield an empty store of objects beside those of the clone, which one task at a time has. Raises OSError."""
    folder = clone.path / ARRIVING
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


async def _receive(clone: Clone, arriving: Path) -> tuple[bool, bool]:
    """Receive what the clone lacks for the remote's branches; return whether one of them, or a tag, has changed, and
    whether all history is here now.

    Refs and what is shallow stay as they are until the objects are moved in.
    """
    heard = bytearray()
    options: Options = {"environment": writing_apart(clone, arriving), "on_stderr": heard.extend}
    # It tells what it does to the refs: https://git-scm.com/docs/git-fetch#_output
    if not (history := everything(clone)):
        await clone.git.on_clone(clone.path, *FETCH[:1], "--dry-run", *FETCH[1:], **options)
        return b" -> " in heard, True
    # A dry run would write what is shallow: another repository knows the clone's refs, and ends where its history does.
    beside = arriving.with_name("repository")
    await asyncio.to_thread(shutil.rmtree, beside, ignore_errors=True)
    await clone.git.run("init", "--quiet", "--bare", "--template=", "--", str(beside), cwd=None)
    for name in ("config", SHALLOW):
        shutil.copyfile(clone.path / name, beside / name)
    lines = "".join(f"{commit} {ref}\n" for ref, commit in (await clone.refs()).items())
    (beside / "packed-refs").write_text(f"# pack-refs with: sorted \n{lines}")
    await clone.git.on_clone(beside, *FETCH, *history, **options)
    is_whole = not (beside / SHALLOW).exists()
    await asyncio.to_thread(shutil.rmtree, beside)
    return b" -> " in heard, is_whole


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


async def pack_refs(clone: Clone) -> None:
    """Pack the refs where they are many, after each sandbox has packed those that it sees: the clone's files go.

    Raises GitError, OSError.
    """
    loose = await asyncio.to_thread(lambda: sum(file.is_file() for file in (clone.path / "refs").rglob("*")))
    if loose < _LOOSE_REFS:
        return
    for admin in admin_directories(clone.path) if clone.git.sandbox.isolates else ():
        view = clone.view(Path(recorded(admin / "gitdir")).parent, admin)
        if not view.private.is_dir():
            continue
        try:
            await asyncio.to_thread(unblock, view)
            packing = ("pack-refs", "--all", "--no-prune")
            await clone.git.in_sandbox(view, *packing, in_worktree=False, timeout_seconds=_SANDBOX_SECONDS)
        except (GitError, OSError) as error:  # its agent may be at work
            _log.info("refs-not-packed", clone=str(clone.path), worktree=view.name, error=str(error))
            return
    await clone.run("pack-refs", "--all", "--prune")
