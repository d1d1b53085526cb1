"""`GET /api/events`: what changes, as Server-Sent Events, told by Postgres' notifications.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import asyncpg
import orjson
import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from bot.operator.api import listings
from bot.operator.api.calls import UNANSWERED
from bot.store.database import connect
from bot.store.scope import EVERYTHING, Scope

CHANNEL: Final = "threadtree_events"
LISTENERS_AT_ONCE: Final = 32
UNREAD_AT_MOST: Final = 500
"""A listener that is slower loses its connection, and looks at the rows again."""
SIGN_OF_LIFE_SECONDS: Final = 15.0
READ_SECONDS: Final = 5.0
_log = structlog.get_logger()

NAMES: Final = (
    *("turn-queued", "turn-started", "turn-step", "turn-progress", "turn-ended"),
    *("worktree-ready", "worktree-removing", "worktree-removed", "worktree-reserved", "worktree-lost"),
    *("worktree-failed", "operation-ended"),
)


Seen = Callable[[], Awaitable[Scope | None]]
"""What a listener may see now; None once it may no longer listen."""


_Event = tuple[bytes, tuple[str, int] | None]
"""An event as it is sent, and its repository; one of none is for those who see everything."""
_LISTENING: Final[_Event] = (b": listening\n\n", None)
"""From here on nothing is missed."""
_STILL_HERE: Final[_Event] = (b": still here\n\n", None)


async def _everything() -> Scope:
    return EVERYTHING


class News:
    """The listeners of this process; one connection to Postgres hears for all, while there are any."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._listeners: set[asyncio.Queue[_Event | None]] = set()
        self._hearing: asyncio.Task[None] | None = None
        self._hears = False
        self._closed = False

    async def stream(self, _: Request) -> Response:
        """Answer with all events from now on."""
        return self.streamed(_everything)

    def streamed(self, seen: Seen) -> Response:
        """Answer with the events from now on that the listener may see when they happen."""
        if self._closed or len(self._listeners) >= LISTENERS_AT_ONCE:
            return JSONResponse({"error": f"{len(self._listeners)} listen already."}, 503, {"Retry-After": "5"})
        unread: asyncio.Queue[_Event | None] = asyncio.Queue(UNREAD_AT_MOST)
        self._listeners.add(unread)
        if self._hears:
            unread.put_nowait(_LISTENING)
        if self._hearing is None or self._hearing.done():
            self._hearing = asyncio.create_task(self._hear(), name="events")
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}
        return StreamingResponse(self._events(unread, seen), headers=headers, media_type="text/event-stream")

    async def _events(self, unread: asyncio.Queue[_Event | None], seen: Seen) -> AsyncIterator[bytes]:
        try:
            while True:
                try:
                    async with asyncio.timeout(SIGN_OF_LIFE_SECONDS):
                        event = await unread.get()
                except TimeoutError:
                    event = _STILL_HERE
                if event is None or (scope := await seen()) is None:
                    return
                data, repository = event
                if event in (_LISTENING, _STILL_HERE) or scope.has(*repository or (None, None)):
                    yield data
        finally:
            self._listeners.discard(unread)

    async def _hear(self) -> None:
        """Hear while there are listeners. If the connection is lost, they are sent away: they may have missed news."""
        while self._listeners:
            try:
                await self._hear_on(await connect(self._dsn))
            except UNANSWERED as problem:
                _log.debug("events-connection-lost", problem=str(problem))
                self._send_away()

    async def _hear_on(self, connection: asyncpg.Connection) -> None:
        heard: asyncio.Queue[str | None] = asyncio.Queue(UNREAD_AT_MOST)

        def hear(payload: str | None) -> None:
            if heard.full():  # some news are lost: it ends like a connection that is
                while not heard.empty():
                    heard.get_nowait()
                payload = None
            heard.put_nowait(payload)

        try:
            connection.add_termination_listener(lambda _: hear(None))
            await connection.add_listener(CHANNEL, lambda *news: hear(str(news[3])))
            self._hears = True
            for listener in self._listeners:
                listener.put_nowait(_LISTENING)
            while self._listeners:
                try:
                    async with asyncio.timeout(SIGN_OF_LIFE_SECONDS):
                        payload = await heard.get()
                except TimeoutError:
                    await connection.execute("select 1", timeout=READ_SECONDS)  # it may have fallen silent
                    continue
                if payload is None:
                    raise ConnectionError("the connection was closed, or too much was told at once")
                self._tell(await _whole(connection, payload))
        finally:
            self._hears = False
            with contextlib.suppress(*UNANSWERED):
                await connection.close(timeout=2)

    def _tell(self, told: Mapping[str, Any]) -> None:
        # orjson escapes line breaks, so that the data is one line.
        data = b"event: " + str(told["event"]).encode() + b"\ndata: " + orjson.dumps(told["news"]) + b"\n\n"
        for listener in tuple(self._listeners):
            try:
                listener.put_nowait((data, told["repository"]))
            except asyncio.QueueFull:
                self._end(listener)

    def _send_away(self) -> None:
        for listener in tuple(self._listeners):
            self._end(listener)

    def _end(self, listener: asyncio.Queue[_Event | None]) -> None:
        self._listeners.discard(listener)
        while listener.full():
            listener.get_nowait()
        listener.put_nowait(None)

    async def close(self) -> None:
        """End all streams: the process stops."""
        self._closed = True
        self._send_away()
        if self._hearing is not None:
            self._hearing.cancel()
            await asyncio.gather(self._hearing, return_exceptions=True)


async def _whole(connection: asyncpg.Connection, payload: str) -> Mapping[str, Any]:
    """Return an event with its repository. A notification has at most 8,000 bytes: a plan is read from its row."""
    told: dict[str, Any] = orjson.loads(payload)
    news = told["news"]
    async with asyncio.timeout(READ_SECONDS):
        if told["event"] == "turn-progress":
            news |= await listings.progress(connection, news["turn"])
        told["repository"] = await listings.repository_of(connection, news.get("turn"), news.get("worktree"))
    return told
