"""The writer of the inbox: deliveries that arrive together are committed together, then acknowledged."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from bot.store import deliveries
from bot.store.database import DATABASE_AWAY, Pool
from bot.store.deliveries import NewDelivery, Stored
from bot.store.failures import database_answered, database_failed

WRITERS = 2
GROUP_SIZE = 64
# GitHub gives up after 10 s: https://docs.github.com/en/webhooks/using-webhooks/best-practices-for-using-webhooks
ATTEMPT_SECONDS = 3.0
ANSWER_SECONDS = 8.0

ACCOUNT_STEP, REPOSITORY_STEP = 20, 200
STEP_FALLS_SECONDS = 20.0
MOST_LEVELS = 10_000


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The delivery may not be committed: the sender must send it again."""

    why: str


class Floods:
    """What was asked lately, by repository and by account in it: a flood is decided after what others ask.

    A level rises with each delivery and falls with time, so that ordinary use has none. Each step of a level above the
    first lowers the priority by one. A flood of a single account hardly delays others in its repository.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._levels: OrderedDict[tuple[str, int | None], tuple[float, float]] = OrderedDict()

    def priority(self, delivery: NewDelivery) -> int:
        """Count a delivery that is to be decided; return the priority of its job, 0 or less."""
        repository = (delivery.lock_key or "").partition("#")[0]
        of_repository = self._raised((repository, None), REPOSITORY_STEP)
        of_account = self._raised((repository, delivery.sender or 0), ACCOUNT_STEP)
        return -(int(of_repository) // REPOSITORY_STEP + int(of_account) // ACCOUNT_STEP)

    def _raised(self, key: tuple[str, int | None], step: int) -> float:
        now = self._clock()
        level, at = self._levels.pop(key, (0.0, now))
        level = max(0.0, level - (now - at) * step / STEP_FALLS_SECONDS) + 1
        self._levels[key] = level, now
        if len(self._levels) > MOST_LEVELS:
            self._levels.popitem(last=False)
        return level


Outcome = Literal["stored", "duplicate", "renamed"] | Unavailable
"""Committed now, for the first time or to run again; committed before, nothing has changed; not stored, for the bot has
other names than its text was searched for; or perhaps stored.
"""


_Waiting = tuple[NewDelivery, asyncio.Future[Outcome]]


class Inbox:
    """Stores deliveries in transactions of at most `group_size` rows, `writers` of them at once.

    `names` are those that the bot answers to, joined by commas, as of the last group; empty while they are not known.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        writers: int = WRITERS,
        group_size: int = GROUP_SIZE,
        attempt_seconds: float = ATTEMPT_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._pool = pool
        self._group_size = group_size
        self._attempt_seconds = attempt_seconds
        self._answer_seconds = answer_seconds
        self.names = ""
        self._most_writers = writers
        self._writers = set[asyncio.Task[None]]()
        self._waiting: dict[asyncio.Future[Outcome], NewDelivery] = {}
        """What no group has yet, the oldest first."""
        self._floods = Floods()

    async def store(self, delivery: NewDelivery) -> Outcome:
        """Return once the delivery is committed, or after `answer_seconds`. Raises Postgres' error for a bad row."""
        if delivery.state == "received":
            delivery = replace(delivery, priority=self._floods.priority(delivery))
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Outcome] = loop.create_future()
        self._waiting[outcome] = delivery
        if len(self._writers) < self._most_writers:
            self._writers.add(writer := loop.create_task(self._write_all()))
            writer.add_done_callback(self._writers.discard)
        late = Unavailable("the database did not answer in time")
        limit = loop.call_later(self._answer_seconds, _tell, ((delivery, outcome),), late)
        try:
            return await outcome
        finally:
            limit.cancel()
            self._waiting.pop(outcome, None)

    async def _write_all(self) -> None:
        """Write groups until nothing waits. A group outlives its requests, of which each may be gone."""
        while self._waiting:
            await asyncio.sleep(0)  # what other connections have sent by now belongs to the group
            if together := list(islice(self._waiting, self._group_size)):
                await self._write([(self._waiting.pop(one), one) for one in together])

    async def _write(self, group: Sequence[_Waiting]) -> None:
        try:
            stored = await self._commit([delivery for delivery, _ in group])
        except DATABASE_AWAY as problem:
            database_failed(problem, task="inbox")
            _tell(group, Unavailable("the database is away"))
        except Exception as problem:  # noqa: BLE001 -- raised where the row that caused it is awaited
            if len(group) == 1:
                if not group[0][1].done():
                    group[0][1].set_exception(problem)
                return
            # One row is bad, or two have the same GUID.
            for waiting in group:
                await self._write([waiting])
        else:
            database_answered()
            self.names = stored.names
            for waiting in group:
                known: Outcome = "duplicate" if waiting[0].searched_for in (None, stored.names) else "renamed"
                _tell([waiting], "stored" if waiting[0].guid in stored.guids else known)

    async def _commit(self, rows: Sequence[NewDelivery]) -> Stored:
        """Try twice: only its use shows that an idle connection was lost."""
        try:
            return await self._attempt(rows)
        except DATABASE_AWAY:
            # The other connections of the pool may be lost too.
            await self._pool.expire_connections()
            return await self._attempt(rows)

    async def _attempt(self, rows: Sequence[NewDelivery]) -> Stored:
        async with self._pool.acquire(timeout=self._attempt_seconds) as connection:
            # Closing the connection also ends the rollback, which would wait for a server that hangs.
            watchdog = asyncio.get_running_loop().call_later(self._attempt_seconds, connection.terminate)
            try:
                return await deliveries.store(connection, rows)
            except Exception as problem:
                if connection.is_closed():
                    # asyncpg also raises an AttributeError where its connection is closed between two steps.
                    raise ConnectionError("the connection was closed") from problem
                raise
            finally:
                watchdog.cancel()


def _tell(group: Sequence[_Waiting], outcome: Outcome) -> None:
    for _, waited_for in group:
        if not waited_for.done():
            waited_for.set_result(outcome)
