"""People are told outside GitHub that a turn ended: a POST to NOTIFY_URL, as a job of its own beside the answer."""

import asyncio
from typing import Final, Literal

import httpx
import orjson
import structlog

from bot import counters
from bot.model import Repository
from bot.redaction import Redactor
from bot.store import jobs, turns
from bot.store.database import DATABASE_AWAY, Connection, Pool
from bot.store.engine import RetryLaterError, backoff_seconds
from bot.thread.notifications import body
from bot.thread.waits import WaitsFor
from bot.turn import waits_rows

Event = Literal["answer", "needs-person", "failed"]
QUEUE: Final = "notify"
"""The queue, and its task."""
MOST_WAITING: Final = 200
"""While so many wait, further ones are left out: the receiver is away, and GitHub tells it all."""
MOST_TRIES: Final = 10
"""Over about twenty minutes."""
ANSWER_SECONDS: Final = 10.0
_log = structlog.get_logger()


def event_of(state: str, waits_for: WaitsFor | None) -> Event | None:
    """Return what people are told of a turn that ended in this state; nothing where a person stopped it."""
    match state:
        case "done":
            return "needs-person" if waits_for not in (None, "review") else "answer"
        case "refused":
            return "needs-person"
        case "failed" | "timed-out" | "interrupted":
            return "failed"
        case _:
            return None


async def of_end(connection: Connection, turn_id: int, state: str, *, is_asked: bool) -> None:
    """Enqueue the message about the end of a turn, in the caller's transaction, with what it begins to wait for.

    Where no agent `is_asked`, the command was carried out before anybody looks away: only what waits is told.
    """
    waits_for = await waits_rows.of_turn(connection, turn_id)
    event = event_of(state, waits_for)
    if event is not None and (is_asked or waits_for is not None):
        await _enqueue(connection, turn_id, event, waits_for)


async def of_question(connection: Connection, turn_id: int) -> None:
    """Enqueue the message that a turn which has not begun waits for a person's word."""
    await _enqueue(connection, turn_id, "needs-person", "answer")


async def of_pull_request(connection: Connection, repository: Repository, number: int) -> None:
    """Enqueue the message that a pull request, which was opened after the end of its turn, waits for a review."""
    if (turn_id := await waits_rows.to_review(connection, repository, number)) is not None:
        await _enqueue(connection, turn_id, "needs-person", "review")


async def _enqueue(connection: Connection, turn_id: int, event: Event, waits_for: WaitsFor | None) -> None:
    waiting = "select count(*) from procrastinate_jobs where queue_name = $1 and status = 'todo'"
    if await connection.fetchval(waiting, QUEUE) < MOST_WAITING:
        what: dict[str, object] = {"turn": turn_id, "event": event, "waits_for": waits_for}
        await jobs.defer(connection, jobs.NewJob(QUEUE, QUEUE, None, what))


class Notifier:
    """Posts messages to `url`, which is a secret. `http` must not follow redirects."""

    def __init__(self, pool: Pool, http: httpx.AsyncClient, url: str, server_url: str, redactor: Redactor) -> None:
        self._pool, self._http, self._url = pool, http, url
        self._server_url = server_url
        self._redactor = redactor

    async def send(self, turn_id: int, event: Event, waits_for: WaitsFor | None, tries: int) -> None:
        """Post one message. Raises RetryLaterError where it may be taken later, `tries` times at most."""
        try:
            ended = await turns.ended(self._pool, turn_id)
        except DATABASE_AWAY as problem:
            raise RetryLaterError(2, type(problem).__name__) from problem
        if ended is None:
            return
        message = self._redactor.public(orjson.dumps(body(turn_id, event, waits_for, ended, self._server_url)).decode())
        why, passes = await self._post(message.encode())
        if why is None:
            counters.NOTIFICATIONS.labels("sent").inc()
        elif passes and tries + 1 < MOST_TRIES:
            raise RetryLaterError(backoff_seconds(tries), why)
        else:
            counters.NOTIFICATIONS.labels("failed").inc()
            _log.warning("notification-given-up", turn=turn_id, problem=why)

    async def _post(self, message: bytes) -> tuple[str | None, bool]:
        """Return what was wrong, None for nothing, and whether that may pass. The answer's body is not read."""
        try:
            async with (
                asyncio.timeout(ANSWER_SECONDS),
                self._http.stream(
                    "POST", self._url, content=message, headers={"content-type": "application/json"}
                ) as answer,
            ):
                status = answer.status_code
        except (httpx.HTTPError, TimeoutError) as problem:
            return type(problem).__name__, True
        if 200 <= status < 300:
            return None, False
        return f"status {status}", status in (408, 425, 429) or status >= 500
