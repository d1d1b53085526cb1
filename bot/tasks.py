"""Work that runs while other work is awaited."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def concurrently(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Run `work` while the block runs, which awaits the result where it needs it; its end cancels what is not done.

    An error of `work` is raised to the one who awaits it, and to no one else.
    """
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def unless(interrupt: Coroutine[Any, Any, NoReturn], work: Awaitable[T]) -> T:
    """Return the result of `work`; if `interrupt` raises first, cancel `work` and raise that once it has ended."""
    interrupting, working = asyncio.create_task(interrupt), asyncio.ensure_future(work)
    try:
        await asyncio.wait({interrupting, working}, return_when=asyncio.FIRST_COMPLETED)
        return interrupting.result() if interrupting.done() else working.result()
    finally:
        for task in (interrupting, working):
            task.cancel()
        await asyncio.gather(interrupting, working, return_exceptions=True)


async def unless_stopped(stopping: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Return what `work` returns. Once `stopping` is set cancel it, and return None after it has cleaned up."""
    task, stop = asyncio.create_task(work), asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
        task.cancel()
        await asyncio.wait({task})
    return None if task.cancelled() else task.result()
