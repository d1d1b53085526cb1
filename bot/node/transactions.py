"""Write what must not be lost, also through an outage of Postgres."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from bot.store.database import DATABASE_AWAY, Connection, Pool
from bot.store.outage import database_answered, database_failed

PATIENCE = timedelta(minutes=10)
_PAUSE_SECONDS = 1.0
T = TypeVar("T")


async def persist(pool: Pool, write: Callable[[Connection], Awaitable[T]]) -> T:
    """Run `write` in a transaction. While Postgres is away, try again for PATIENCE; then raise its error."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE.total_seconds()
    while True:
        try:
            async with pool.acquire() as connection, connection.transaction():
                written = await write(connection)
            database_answered()
            return written
        except DATABASE_AWAY as problem:
            if loop.time() > deadline:
                raise
            database_failed(problem)
        await asyncio.sleep(_PAUSE_SECONDS)
