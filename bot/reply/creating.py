"""A creation on GitHub outside the outbox keeps its limits: one writer at a time, and the budgets of `pacing`."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TypeVar

from bot.github.errors import Transient
from bot.github.transport import Clock, Sleep
from bot.model import ThreadRef
from bot.reply import pacing
from bot.store import outbox
from bot.store.database import Connection, Pool

PATIENCE = timedelta(minutes=3)
LOCK_POLL_SECONDS = 0.2
T = TypeVar("T")


async def create_in_line(
    pool: Pool, thread_ref: ThreadRef, create: Callable[[], Awaitable[T]], clock: Clock, sleep: Sleep
) -> T:
    """Run `create`, which makes one pull request for the thread, when the writer's limits allow it.

    Raises GitHubError; Transient also where the limits do not allow it within PATIENCE.
    """
    writer = thread_ref.repository.writer
    while True:
        wait: timedelta | None = None
        async with pool.acquire() as connection:
            if await outbox.lock_writer(connection, writer):
                now = clock()
                wait = await _opens(connection, writer, now) - now
                if not wait:
                    return await _create(connection, thread_ref, create, clock)
        if wait is None:
            await asyncio.sleep(LOCK_POLL_SECONDS)  # another sender is at work
        elif wait > PATIENCE:
            limit = "GitHub's limit for new content is used up"
            raise Transient("installation", wait.total_seconds(), limit, may_have_happened=False)
        else:
            await sleep(wait.total_seconds())


async def _opens(connection: Connection, writer: str, now: datetime) -> datetime:
    """Return when the writer may create something, `now` or later."""
    paused = await outbox.paused_until(connection, writer, now)
    created = await outbox.created_within(connection, writer, pacing.HOUR, now)
    return max(paused or now, pacing.next_creation(created, now))


async def _create(connection: Connection, thread_ref: ThreadRef, create: Callable[[], Awaitable[T]], clock: Clock) -> T:
    writer = thread_ref.repository.writer
    try:
        return await create()
    except Transient as error:
        if error.scope == "installation":
            until = clock() + pacing.backoff(0, error.retry_after_seconds)
            await outbox.pause_writer(connection, writer, until)
        raise
    finally:
        await outbox.record_pull_request(connection, thread_ref, clock())
