"""A worktree on disk as it is now: its size and changes, the time of its last change, its lock. Nothing is changed."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path

from bot.clones import entries, holding
from bot.clones.admin import Missing, admin_directory, real_path, recorded
from bot.clones.clone import Clone
from bot.clones.status import MOST_TOGETHER, Status, changes_in, statuses
from bot.git.errors import GitError
from bot.sandbox.disk import used_bytes
from bot.sandbox.untrusted_files import entries_below
from bot.sandbox.view import private_folder

READ_AT_ONCE = 2
_ORIGIN = "refs/remotes/origin/"
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


async def summarize(clone: Clone, branches: Mapping[Path, str | None]) -> dict[Path, Summary]:
    """Summarize worktrees of one clone, each on this branch; without those where nothing is."""
    sizes = await asyncio.to_thread(_sizes, branches)
    theirs = await asyncio.to_thread(holding.tips, clone.path, _ORIGIN)
    waiting, found = [*sizes], dict[Path, Summary]()
    together = min(MOST_TOGETHER, -(-len(waiting) // READ_AT_ONCE))

    async def work() -> None:
        while waiting:
            some = [waiting.pop() for _ in range(min(len(waiting), together))]
            seen = await statuses(clone, some)
            for path in some:
                tip = theirs.get(f"{_ORIGIN}{branches[path]}")
                found[path] = await _summary(clone, path, sizes[path], seen.get(path), tip)

    await asyncio.gather(*(work() for _ in range(READ_AT_ONCE)))
    return found


def _sizes(paths: Iterable[Path]) -> dict[Path, int]:
    return {path: used_bytes((path,), sys.maxsize) for path in paths if path.is_dir()}


async def _summary(clone: Clone, path: Path, size: int, seen: Status | None, theirs: str | None) -> Summary:
    try:
        if seen is None:
            await entries.unblock(clone, path)
            seen = Status(await entries.head_of(clone, path), await changes_in(clone, path))
        changed = len(seen.changes)
        if seen.head is None or theirs is None:
            return Summary(size, changed)
        if seen.head == theirs:
            return Summary(size, changed, 0, 0)
        if await clone.commit_at(seen.head) is None:
            return Summary(size, changed)
        return Summary(size, changed, *await clone.ahead_behind(seen.head, theirs))
    except (GitError, OSError):
        return Summary(size)  # a broken worktree is listed like any other


async def last_change(clone: Clone, path: Path) -> datetime | None:
    """Return the newest time of the uncommitted files, the index and HEAD; None if the path is empty. It writes nothing
    and opens only directories that git cannot read. If git cannot list the changes, all files count.
    """
    return await _by_git(clone, path) or await asyncio.to_thread(_newest, path, [""])


def is_newer(clone: Clone, path: Path, before: datetime) -> bool:
    """Return whether `last_change` may be later: whether any file, committed or not, is. It stops at the first."""
    cage, admin = clone.git.cage, admin_directory(clone.path, path)
    state = private_folder(cage.data_dir, real_path(path)) / "state" if cage is not None else admin
    places = [path, *(state / name for name in _STATE if isinstance(state, Path))]
    times = chain(
        (_mtime(place.lstat) for place in places),
        (_mtime(partial(child.stat, follow_symlinks=False)) for child in entries_below(path)),
    )
    return any(time > before.timestamp() for time in times)


def _mtime(look: Callable[[], os.stat_result]) -> float:
    """Return the time of the last change in seconds, 0 for what is not there."""
    try:
        return look().st_mtime
    except OSError:
        return 0


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
