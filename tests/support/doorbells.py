"""What hears the doorbells of nodes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg

from bot.store.jobs import TURN_WAITS, WORK_WAITS
from tests.support.patience import PATIENCE_SECONDS

Rung = Callable[[], Awaitable[list[str]]]
"""Returns the nodes whose doorbells rang since the last call, in order."""


@asynccontextmanager
async def doorbells(dsn: str) -> AsyncIterator[Rung]:
    """Listen from now on."""
    heard: asyncio.Queue[str] = asyncio.Queue()
    db = await asyncpg.connect(dsn)
    for channel in (TURN_WAITS, WORK_WAITS):
        await db.add_listener(channel, lambda *message: heard.put_nowait(message[-1]))

    async def rung() -> list[str]:
        nodes: list[str] = []
        await db.execute("select pg_notify($1, 'nobody')", WORK_WAITS)  # what was committed before is heard before
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (node := await heard.get()) != "nobody":
                nodes.append(node)
        return nodes

    try:
        yield rung
    finally:
        await db.close()
