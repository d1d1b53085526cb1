"""Write what must not be lost, also through an outage of Postgres."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

import structlog

from bot.store.database import DATABASE_AWAY, Connection, Pool

PATIENCE = timedelta(minutes=10)
_PAUSE_SECONDS = 1.0
T = TypeVar("T")
_log = structlog.get_logger()


async def persist(pool: Pool, write: Callable[[Connection], Awaitable[T]]) -> T:
    """Run `write` in a transaction. While Postgres is away, try again for PATIENCE; then raise its error."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE.total_seconds()
    while True:
        try:
            async with pool.acquire() as connection, connection.transaction():
                return await write(connection)
        except DATABASE_AWAY as problem:
            if loop.time() > deadline:
                raise
            _log.warning("database-away", problem=type(problem).__name__)
        await asyncio.sleep(_PAUSE_SECONDS)
