"""How long tests wait for an event, and waits for what tells nobody that it happened."""

import asyncio
from collections.abc import Callable
from pathlib import Path

PATIENCE_SECONDS = 120.0
"""The limit of every wait, far above what a busy machine needs: only a missing event reaches it."""


async def until_true(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; raise TimeoutError after PATIENCE_SECONDS."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def until_exists(path: Path) -> None:
    """Wait for a file that another process makes."""
    await until_true(path.exists)
