"""People are told outside GitHub that a turn ended: a POST to NOTIFY_URL, as a job of its own beside the answer."""

import asyncio
from typing import Final, Literal

import httpx
import orjson
import structlog

from bot import counters
from bot.redaction import Redactor
from bot.store import jobs, turns
from bot.store.database import DATABASE_AWAY, Connection, Pool
from bot.store.engine import RetryLaterError, backoff_seconds
from bot.thread.notifications import body
from bot.thread.outcome import Outcome

Event = Literal["answer", "needs-person", "failed"]
QUEUE: Final = "notify"
"""The queue, and its task."""
MOST_WAITING: Final = 200
"""While so many wait, further ones are left out: the receiver is away, and GitHub tells it all."""
MOST_TRIES: Final = 10
"""Over about twenty minutes."""
ANSWER_SECONDS: Final = 10.0
_log = structlog.get_logger()


def event_of(state: str, outcome: Outcome) -> Event | None:
    """Return what people are told of a turn that ended in this state; nothing where a person stopped it."""
    match state:
        case "done":
            return "needs-person" if outcome.asked or outcome.came == "plan" else "answer"
        case "refused":
            return "needs-person"
        case "failed" | "timed-out" | "interrupted":
            return "failed"
        case _:
            return None


async def enqueue(connection: Connection, turn_id: int, state: str, outcome: Outcome) -> None:
    """Enqueue the message about the end of a turn, in the caller's transaction."""
    event = event_of(state, outcome)
    waiting = "select count(*) from procrastinate_jobs where queue_name = $1 and status = 'todo'"
    if event is None or await connection.fetchval(waiting, QUEUE) >= MOST_WAITING:
        return
    await jobs.defer(connection, jobs.NewJob(QUEUE, QUEUE, None, {"turn": turn_id, "event": event}))


class Notifier:
    """Posts messages to `url`, which is a secret. `http` must not follow redirects."""

    def __init__(self, pool: Pool, http: httpx.AsyncClient, url: str, server_url: str, redactor: Redactor) -> None:
        self._pool, self._http, self._url = pool, http, url
        self._server_url = server_url
        self._redactor = redactor

    async def send(self, turn_id: int, event: Event, tries: int) -> None:
        """Post one message. Raises RetryLaterError where it may be taken later, `tries` times at most."""
        try:
            ended = await turns.ended(self._pool, turn_id)
        except DATABASE_AWAY as problem:
            raise RetryLaterError(2, type(problem).__name__) from problem
        if ended is None:
            return
        message = self._redactor.redact(orjson.dumps(body(turn_id, event, ended, self._server_url)).decode())
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
