"""A creation on GitHub outside the outbox keeps its limits: one writer at a time, and the budgets of `pacing`."""

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
_LOOK_AGAIN = timedelta(seconds=1)
T = TypeVar("T")


async def create_in_line(
    pool: Pool, thread_ref: ThreadRef, create: Callable[[], Awaitable[T]], clock: Clock, sleep: Sleep
) -> T:
    """Run `create`, which makes one pull request for the thread, when the writer's limits allow it.

    Raises GitHubError; Transient also where the limits do not allow it within PATIENCE.
    """
    give_up = clock() + PATIENCE
    while True:
        async with pool.acquire() as connection:
            opens = await _opens(connection, thread_ref.repository.writer, clock())
            if opens <= clock():
                return await _create(connection, thread_ref, create, clock)
        if opens > give_up:
            wait = (opens - clock()).total_seconds()
            raise Transient("installation", wait, "GitHub's limit for new content is used up", may_have_happened=False)
        await sleep((opens - clock()).total_seconds())


async def _opens(connection: Connection, writer: str, now: datetime) -> datetime:
    """Return when to look again, or `now` with the writer's lock: this connection is then the only sender."""
    if not await outbox.lock_writer(connection, writer):
        return now + _LOOK_AGAIN
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
