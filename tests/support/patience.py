"""Waits of tests: how long they wait for an event, and how often they look."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

PATIENCE_SECONDS = 120.0
"""The limit of every wait, far above what a busy machine needs: only a missing event reaches it."""
FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS = 0.01, 0.1
"""The first pause between two looks, and the longest: frequent looks take the time of what a busy machine waits for."""
T = TypeVar("T")


async def eventually(
    condition: Callable[[], Awaitable[T]],
    seconds: float = PATIENCE_SECONDS,
    what: Callable[[], Awaitable[str]] | None = None,
) -> T:
    """Return the condition's first true value; `what` describes the state if there is none in time.

    For conditions whose changes are not announced: rows, files, other processes.
    """
    pause = FIRST_LOOK_SECONDS
    try:
        async with asyncio.timeout(seconds):
            while not (value := await condition()):
                await asyncio.sleep(pause)
                pause = min(1.2 * pause, LAST_LOOK_SECONDS)
            return value
    except TimeoutError as error:
        raise TimeoutError(f"not within {seconds} s:\n{await what() if what else condition}") from error


async def until_true(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""

    async def holds() -> bool:
        return condition()

    await eventually(holds)


async def until_exists(path: Path) -> None:
    """Wait for a file that another process makes."""
    await until_true(path.exists)
