"""A worktree on disk as it is now: its size and changes, the time of its last change, its lock. Nothing is changed."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from bot.sandbox.trash import size_of
from bot.sandbox.untrusted_files import entries_below
from bot.tree.clone.admin import LIVE, UNFINISHED, Missing, admin_directory
from bot.tree.clone.checkout import look_at
from bot.tree.clone.clone import Clone
from bot.tree.clone.status import MOST_TOGETHER, statuses
from bot.tree.git.errors import GitError

READ_AT_ONCE = 2
_ORIGIN = "refs/remotes/origin/"
_STATE = ("index", "HEAD")
_NEVER = datetime.min.replace(tzinfo=UTC)
_OWN_LOCKS = (LIVE, *UNFINISHED)


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
    async with clone.reading() as read:  # one process answers for all
        return await _summarize(read, branches)


async def _summarize(clone: Clone, branches: Mapping[Path, str | None]) -> dict[Path, Summary]:
    sizes = await asyncio.to_thread(lambda: {path: size_of(path) for path in branches if path.is_dir()})
    try:
        theirs = await clone.refs(_ORIGIN)
    except (GitError, OSError):
        theirs = {}  # worktrees of a missing or damaged clone are listed like any other
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


async def _summary(
    clone: Clone, path: Path, size: int, seen: tuple[str | None, int] | None, theirs: str | None
) -> Summary:
    try:
        if seen is None:
            found = await look_at(clone, path)
            if isinstance(found, Missing):
                return Summary(size)
            await found.unblock()
            seen = (found.commit, len(await found.work()))
        head, changed = seen
        if head is not None and head == theirs:
            return Summary(size, changed, 0, 0)
        if head is None or theirs is None or await clone.commit_at(head) is None:
            return Summary(size, changed)
        return Summary(size, changed, *await clone.ahead_behind(head, theirs))
    except (GitError, OSError):
        return Summary(size)  # a broken worktree is listed like any other


def last_change(clone: Clone | None, path: Path) -> datetime | None:
    """Return the newest time of the files, the index and HEAD; None if nothing is there. It writes nothing.

    Every file counts, also one that is committed or ignored: to keep a worktree for longer loses nothing.
    """
    admin = admin_directory(clone.path, path) if clone else None
    states = [clone.view(path, admin).state] if clone and isinstance(admin, Path) else []
    top = (path, *(state / name for state in states for name in _STATE))
    files = chain((str(place) for place in top), (child.path for child in entries_below(path)))
    newest = max(map(_changed_at, files), default=_NEVER)
    return newest if newest > _NEVER else None


def _changed_at(file: str) -> datetime:
    with suppress(OSError, OverflowError, ValueError):
        return datetime.fromtimestamp(os.lstat(file).st_mtime, UTC)
    return _NEVER
