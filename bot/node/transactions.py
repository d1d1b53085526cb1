"""Write what must not be lost, also through an outage of Postgres."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Concatenate, ParamSpec, TypeVar

from bot.store.database import Connection, Pool, retry_on_unique_violation
from bot.store.failures import database_answered, database_failed, is_transient

_PAUSE_SECONDS = 1.0
P = ParamSpec("P")
T = TypeVar("T")


async def persist(
    pool: Pool, write: Callable[Concatenate[Connection, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call `write` with a connection and the arguments, in a transaction, again and again while Postgres is away.

    Again also where another transaction wrote a unique key before it. Without a limit: a run that gave up would count
    as cut off, and nothing else can be done meanwhile.
    """

    async def written_once() -> T:
        async with pool.acquire() as connection, connection.transaction():
            return await write(connection, *args, **kwargs)

    while True:
        try:
            written = await retry_on_unique_violation(written_once)
            database_answered()
            return written
        except Exception as problem:
            if not is_transient(problem):
                raise
            database_failed(problem)
        await asyncio.sleep(_PAUSE_SECONDS)
