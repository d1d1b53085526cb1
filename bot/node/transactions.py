"""Write what must not be lost, also through an outage of Postgres."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bot.store.database import Connection, Pool, again_if_beaten
from bot.store.failures import is_transient
from bot.store.outage import database_answered, database_failed

_PAUSE_SECONDS = 1.0
T = TypeVar("T")


async def persist(pool: Pool, write: Callable[[Connection], Awaitable[T]]) -> T:
    """Run `write` in a transaction, again and again while Postgres is away, and where it was beaten to a unique key.

    Without a limit: a run that gave up would count as cut off, and nothing else can be done meanwhile.
    """

    async def written_once() -> T:
        async with pool.acquire() as connection, connection.transaction():
            return await write(connection)

    while True:
        try:
            written = await again_if_beaten(written_once)
            database_answered()
            return written
        except Exception as problem:
            if not is_transient(problem):
                raise
            database_failed(problem)
        await asyncio.sleep(_PAUSE_SECONDS)
