"""A worktree on disk as it is now: its size and changes, the time of its last change, its lock. Nothing is changed."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bot.clones import entries
from bot.clones.admin import Missing, admin_directory, real_path, recorded
from bot.clones.clone import Clone
from bot.git import refs
from bot.git.errors import GitError
from bot.sandbox.disk import used_bytes
from bot.sandbox.untrusted_files import entries_below
from bot.sandbox.view import private_folder

_STATE = ("index", "HEAD")
_OWN_LOCKS = (entries.LIVE, *entries.UNFINISHED)


@dataclass(frozen=True, slots=True)
class Summary:
    """`bytes` on disk, the `changed_files` that are not committed, and the commits between it and GitHub's branch as
    they were at the last fetch. None: cannot be told, or there is nothing to compare with.
    """

    bytes: int
    changed_files: int | None = None
    ahead: int | None = None
    behind: int | None = None


async def summarize(clone: Clone, path: Path, branch: str | None) -> Summary | None:
    """Summarize the worktree at `path`; None where nothing is there."""
    if not await asyncio.to_thread(path.is_dir):
        return None
    size = await asyncio.to_thread(used_bytes, (path,), sys.maxsize)
    try:
        await entries.unblock(clone, path)
        changed = len(await entries.changed_files(clone, path))
        head = await entries.head_of(clone, path)
        theirs = await clone.commit_at(refs.remote(branch)) if branch else None
        if head is None or theirs is None or await clone.commit_at(head) is None:
            return Summary(size, changed)
        if head == theirs:
            return Summary(size, changed, 0, 0)
        ahead, behind = (await clone.run("rev-list", "--left-right", "--count", f"{head}...{theirs}")).text.split()
        return Summary(size, changed, int(ahead), int(behind))
    except (GitError, OSError, refs.InvalidNameError):
        return Summary(size)  # a broken worktree is listed like any other


async def last_change(clone: Clone, path: Path) -> datetime | None:
    """Return the newest time of the uncommitted files, the index and HEAD; None if the path is empty. It writes nothing
    and opens only directories that git cannot read. If git cannot list the changes, all files count.
    """
    return await _by_git(clone, path) or await asyncio.to_thread(_newest, path, [""])


def foreign_lock(clone: Path, path: Path) -> str | None:
    """Return the reason of a `git worktree lock` that is not the bot's; None without such a lock."""
    admin = admin_directory(clone, path)
    if isinstance(admin, Missing):
        return None
    reason = recorded(admin / "locked")
    return None if not os.path.lexists(admin / "locked") or reason in _OWN_LOCKS else reason


async def _by_git(clone: Clone, path: Path) -> datetime | None:
    """Return None where git cannot tell, or only after a cage's private folder is made."""
    admin = admin_directory(clone.path, path)
    if isinstance(admin, Missing):
        return None
    cage = clone.git.cage
    if cage is not None and not private_folder(cage.data_dir, real_path(path)).is_dir():
        return None
    try:
        await entries.unblock(clone, path)
        state = await clone.state_folder(path)
        names = await entries.changed_files(clone, path)
    except (GitError, OSError):
        return None
    changed = await asyncio.to_thread(_newest, path, names)
    times = [changed, *(_time_of(state / name) for name in _STATE if state is not None)]
    return max((time for time in times if time is not None), default=None)


def _newest(top: Path, names: Iterable[str]) -> datetime | None:
    times = (_time_of(file) for name in names for file in _files(top, name))
    return max((time for time in times if time is not None), default=None)


def _files(top: Path, name: str) -> Iterator[Path]:
    """Yield the file itself; for a deleted file its directory; for a directory also everything in it."""
    path = top / name
    while not os.path.lexists(path) and path != top:
        path = path.parent
    yield path
    if path == top / name and path.is_dir() and not path.is_symlink():
        yield from (Path(child.path) for child in entries_below(path))


def _time_of(path: Path) -> datetime | None:
    with contextlib.suppress(OSError, OverflowError, ValueError):
        return datetime.fromtimestamp(path.lstat().st_mtime, UTC)
    return None
