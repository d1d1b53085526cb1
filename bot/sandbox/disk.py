"""The disk space of a turn, measured from time to time: the kernel does not limit a folder."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from threading import Event

from bot.sandbox.untrusted_files import entries_below
from bot.tasks import concurrently

POLL_SECONDS = 5.0
# The pause after a count, in times of what the count took.
_SHARE = 20
_BLOCK_BYTES = 512  # what st_blocks counts, https://man7.org/linux/man-pages/man3/stat.3type.html


@dataclass(frozen=True, slots=True)
class DiskWatch:
    """The folders an agent can write, and the bytes they may hold together."""

    folders: tuple[Path, ...]
    limit_bytes: int

    async def overflow(self, poll_seconds: float = POLL_SECONDS) -> int:
        """Wait until the folders hold more than the limit; return the bytes counted until then.

        Counting takes at most a twentieth of the time.
        """
        over = Event()
        try:
            while True:
                begin = time.monotonic()
                used = await asyncio.to_thread(used_bytes, self.folders, self.limit_bytes, over)
                if used > self.limit_bytes:
                    return used
                await asyncio.sleep(max(poll_seconds, _SHARE * (time.monotonic() - begin)))
        finally:
            over.set()  # a thread cannot be cancelled


@asynccontextmanager
async def watched(disk: DiskWatch, on_overflow: Callable[[int], None]) -> AsyncIterator[None]:
    """Call `on_overflow` with the limit once the folders hold more, while the context lasts."""

    async def watch() -> None:
        await disk.overflow()
        on_overflow(disk.limit_bytes)

    async with concurrently(watch()):
        yield


def used_bytes(folders: Iterable[Path], enough: int, over: Event | None = None) -> int:
    """Return the bytes these folders take on disk. Counting follows no link and ignores lost files; it ends past
    `enough`, and when it is `over`.
    """
    used = 0
    for child in chain.from_iterable(map(entries_below, folders)):
        with suppress(OSError):  # it vanished
            used += child.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
        if used > enough or (over is not None and over.is_set()):
            break
    return used
