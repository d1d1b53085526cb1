"""A layer around every request: the log, the rate limit headers, and the faults that are switched on."""

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, assert_never

import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bot.simulated.github.auth import authenticate
from bot.simulated.github.errors import RefusedError
from bot.simulated.github.faults import (
    DropAfter,
    DropBefore,
    FailAfter,
    FailBefore,
    Fault,
    Faults,
    Garble,
    GraphQLError,
    Held,
    Latency,
    PrimaryRateLimit,
    SecondaryRateLimit,
    Trickle,
)
from bot.simulated.github.rest_call import answer
from bot.simulated.github.serving import TRANSPORT
from bot.simulated.github.world import World

REQUESTS_PER_HOUR = 5000
HOUR_SECONDS = 3600

SECONDARY_MESSAGE = (
    "You have exceeded a secondary rate limit. Please wait a few minutes before you try again. "
    "If you reach out to GitHub Support for help, please include the request ID."
)


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A request as the client saw it answered; no status if the connection broke.

    `began` and `ended` are seconds of the event loop's clock.
    """

    method: str
    path: str
    query: str
    status: int | None
    login: str | None
    at: datetime
    began: float
    ended: float


@dataclass(slots=True)
class RateLimit:
    """Requests used by each account in the current hour."""

    used: Counter[str] = field(default_factory=Counter)

    def headers(self, login: str, now: datetime) -> dict[str, str]:
        """Return an answer's headers: https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api"""
        hour = int(now.timestamp()) // HOUR_SECONDS
        used = self.used[f"{login}:{hour}"]
        return {
            "x-ratelimit-limit": str(REQUESTS_PER_HOUR),
            "x-ratelimit-remaining": str(max(0, REQUESTS_PER_HOUR - used)),
            "x-ratelimit-used": str(used),
            "x-ratelimit-reset": str((hour + 1) * HOUR_SECONDS),
            "x-ratelimit-resource": "core",
        }

    def count(self, login: str, now: datetime) -> None:
        self.used[f"{login}:{int(now.timestamp()) // HOUR_SECONDS}"] += 1


class Traffic:
    """The outermost ASGI application."""

    def __init__(self, app: ASGIApp, world: World, faults: Faults) -> None:
        self.requests: list[LoggedRequest] = []
        self.rate_limit = RateLimit()
        self.latency_seconds = 0.0
        self._app = app
        self._world = world
        self._faults = faults
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End all waits, since the server is about to stop."""
        self._closing.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, log it, and wake all waiters."""
        if scope["type"] != "http":
            return
        if scope["path"].startswith("/api/"):  # where an Enterprise Server has its API
            scope = {**scope, "path": scope["path"].removeprefix("/api").removeprefix("/v3")}
        method, path = scope["method"], scope["path"]
        login = self._login(Headers(scope=scope))
        status: int | None = None
        clock = asyncio.get_running_loop().time
        began = clock()

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(raw=message["headers"])
                now = self._world.clock()
                # https://docs.github.com/rest/using-the-rest-api/best-practices-for-using-the-rest-api#use-conditional-requests-if-appropriate
                if login is not None and path != "/rate_limit" and status != 304:
                    self.rate_limit.count(login, now)
                for name, value in self.rate_limit.headers(login or "", now).items():
                    headers.setdefault(name, value)
                for name, value in self._token_headers(Headers(scope=scope)).items():
                    headers.setdefault(name, value)
                headers.setdefault("date", format_datetime(now.astimezone(UTC), usegmt=True))
                message["headers"] = headers.raw
            await send(message)

        try:
            if self.latency_seconds:
                await self._pause(self.latency_seconds)
            await self._with_fault(self._faults.for_request(method, path), scope, receive, observed)
        finally:
            query = scope["query_string"].decode("latin-1")
            at = self._world.clock()
            self.requests.append(LoggedRequest(method, path, query, status, login, at, began, clock()))
            self._world.changes.notify()

    async def rate_limit_endpoint(self, request: Request) -> Response:
        """Handle GET /rate_limit, which does not count."""
        login = self._login(request.headers)
        headers = self.rate_limit.headers(login or "", self._world.clock())
        core = {name: int(headers[f"x-ratelimit-{name}"]) for name in ("limit", "remaining", "used", "reset")}
        return answer({"resources": {"core": core, "graphql": core}, "rate": core})

    def _token_headers(self, headers: Headers) -> dict[str, str]:
        """Return what GitHub tells of a personal token; of a fine-grained one not even that it has scopes."""
        token = self._world.token(headers.get("authorization", "").partition(" ")[2])
        if token is None or token.is_installation:
            return {}
        told = {} if token.scopes is None else {"x-oauth-scopes": token.scopes}
        if token.expires_at is not None:
            told["github-authentication-token-expiration"] = f"{token.expires_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        return told

    def _login(self, headers: Headers) -> str | None:
        try:
            return authenticate(self._world, headers.get("authorization")).login
        except RefusedError:
            return None

    async def _with_fault(self, fault: Fault | None, scope: Scope, receive: Receive, send: Send) -> None:
        match fault:
            case None:
                await self._app(scope, receive, send)
            case Latency(seconds):
                await self._pause(seconds)
                await self._app(scope, receive, send)
            case Held(until):
                await until.wait()
                await self._app(scope, receive, send)
            case Trickle():
                await self._app(scope, receive, self._trickling(fault, send))
            case FailBefore(status, message):
                await _failure(status, message)(scope, receive, send)
            case FailAfter(status):
                await self._app(scope, receive, _nowhere)
                await _failure(status)(scope, receive, send)
            case DropBefore():
                await _drop(scope, receive)
            case DropAfter(seconds):
                await self._app(scope, receive, _nowhere)
                await self._pause(seconds)
                await _drop(scope, receive)
            case Garble():
                await self._app(scope, receive, _nowhere)
                await Response(b'{"id": 3', media_type="application/json")(scope, receive, send)
            case SecondaryRateLimit(retry_after, status):
                await _secondary_limit(retry_after, status)(scope, receive, send)
            case PrimaryRateLimit(reset_after, status):
                reset = int(self._world.clock().timestamp()) + reset_after
                await _primary_limit(reset, status, scope["path"])(scope, receive, send)
            case GraphQLError():
                await _in_part(self._app, fault, scope, receive, send)
            case _:
                assert_never(fault)

    def _trickling(self, fault: Trickle, send: Send) -> Send:
        async def slowly(message: Message) -> None:
            if message["type"] != "http.response.body":
                return await send(message)
            body = message.get("body", b"")
            for start in range(0, len(body), fault.piece_bytes):
                if fault.until is None or not fault.until.is_set():
                    await self._pause(fault.seconds)
                piece = body[start : start + fault.piece_bytes]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            return await send({**message, "body": b""})

        return slowly

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()


async def _in_part(app: ASGIApp, fault: GraphQLError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer without what the fault names; a query that does not ask for that is answered whole."""
    found: dict[str, Any] = {"data": None}
    if fault.path:
        body = bytearray()

        async def kept(message: Message) -> None:
            body.extend(message.get("body", b""))

        await app(scope, receive, kept)
        found = orjson.loads(body)
        holder: Any = found["data"]
        try:
            for step in fault.path[:-1]:
                holder = holder[step]
            holder[fault.path[-1]]
        except (KeyError, IndexError, TypeError):
            return await answer(found)(scope, receive, send)
        holder[fault.path[-1]] = None
    named = {"type": fault.type, "path": list(fault.path)}
    error = {"message": fault.message, **{key: value for key, value in named.items() if value}}
    return await answer({**found, "errors": [*found.get("errors", []), error]})(scope, receive, send)


def _failure(status: int, message: str = "Simulated failure") -> Response:
    if status >= 500:
        return Response("<html><body><h1>Unicorn!</h1></body></html>", status, media_type="text/html")
    return answer({"message": message, "status": str(status)}, status)


def _secondary_limit(retry_after: int | None, status: int) -> Response:
    documentation = "https://docs.github.com/rest/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits"
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return answer({"documentation_url": documentation, "message": SECONDARY_MESSAGE}, status, headers)


def _primary_limit(reset: int, status: int, path: str) -> Response:
    """Return the refusal; GraphQL uses status 200 and an error type of its own."""
    headers = {
        "x-ratelimit-remaining": "0",
        "x-ratelimit-used": str(REQUESTS_PER_HOUR),
        "x-ratelimit-reset": str(reset),
    }
    message = "API rate limit exceeded for this user."
    if path == "/graphql":
        # As it was seen, not as it is documented: https://github.com/yanyongyu/githubkit/issues/271
        error = {"type": "RATE_LIMIT", "code": "graphql_rate_limit", "message": message}
        return answer({"errors": [error]}, 200, headers)
    return answer({"message": message, "documentation_url": "https://docs.github.com/rest"}, status, headers)


async def _nowhere(_: Message) -> None:
    """Discard an answer that the client must not see."""


async def _drop(scope: Scope, receive: Receive) -> None:
    """Break the connection, and return when the server has noticed."""
    scope[TRANSPORT].abort()
    while (await receive())["type"] != "http.disconnect":
        pass
