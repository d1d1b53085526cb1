"""The model proxy of a turn: replaces the turn's dummy key by the real one, on the way to one upstream.

The agent never sees the real key: not in its environment, not in an error of the upstream, not by a redirect. And the
key serves for the requests that the agent needs, not for the account's files, batches or stored answers: neither by
an address nor by a name in a body (`model_bodies.py`).
"""

import asyncio
import re
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote_plus

import h11
import httpx
import structlog

from bot.sandbox.net import sockets
from bot.sandbox.net.model_answers import ModelAnswers
from bot.sandbox.net.model_bodies import RefusedBodyError, check_body
from bot.sandbox.net.sockets import BadRequestError, Header
from bot.sandbox.outbound import Outbound

MAX_BODY_BYTES = 64 * 1024 * 1024
"""The bytes of all requests of a turn under way. A body is held as a whole, since no part can be judged alone."""
REQUEST_SECONDS = 3600.0
# Agents send one request a step; the longest turns have some hundred steps.
MAX_REQUESTS = 5_000
# Models think in silence for minutes.
UPSTREAM_TIMEOUT = httpx.Timeout(600.0, connect=15.0, write=60.0)

_KEY_HEADERS = frozenset({b"authorization", b"x-api-key", b"x-goog-api-key"})
_BEARER = re.compile(rb"bearer +(.*)", re.IGNORECASE)
# Headers for this proxy only, headers with the state of another caller, and headers that would reveal this host.
_NOT_FOR_UPSTREAM = frozenset(
    {b"host", b"cookie", b"accept-encoding", b"expect", b"forwarded", b"via", b"content-length", b"transfer-encoding"}
)
# `location`: a redirect could send a key elsewhere. The last two are wrong after the decoding here.
_NOT_FOR_AGENT = frozenset({b"set-cookie", b"location", b"content-length", b"content-encoding"})
_UNCOMPRESSED = (b"accept-encoding", b"identity")
_DECODED = frozenset({"", "identity", "gzip", "deflate"})

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """The address of an agent's model, with the real key, and the variables that point the agent to the proxy.

    `endpoints`: the method of each permitted request, and a regular expression for its whole path below `upstream`.
    `answers` hears what is answered.
    """

    upstream: str
    key: str = field(repr=False)
    base_url_variable: str
    key_variable: str
    endpoints: tuple[tuple[str, str], ...]
    answers: ModelAnswers = field(default_factory=ModelAnswers)

    def __post_init__(self) -> None:
        if not (self.key.isascii() and self.key.isprintable() and self.key.strip()):
            raise ValueError(f"{self.key_variable} holds no key")
        if not self.upstream.startswith(("https://", "http://")):
            raise ValueError(f"{self.base_url_variable} is no http address")

    def permits(self, method: bytes, target: bytes) -> bool:
        """Return whether the agent may send this request; `target` is a path with or without a query."""
        path = target.partition(b"?")[0].decode("ascii")
        return any(
            method == known.encode() and re.fullmatch(pattern, path) is not None for known, pattern in self.endpoints
        )


def new_dummy() -> str:
    """Return a key for one turn, which only this turn's proxy accepts."""
    return secrets.token_urlsafe(32)


def swap_key(target: bytes, headers: list[Header], dummy: str, key: str) -> list[Header] | None:
    """Return the headers with `key` where they had `dummy`: Authorization, x-api-key, x-goog-api-key.

    None for a request without the dummy, or with another key beside it, also in its address: that would reach another's
    account. Header names are in lower case.
    """
    query = target.partition(b"?")[2].decode("ascii")
    if any(unquote_plus(pair.partition("=")[0]) == "key" for pair in query.split("&")):
        return None
    swapped: list[Header] = []
    found = False
    for name, value in headers:
        bearer = _BEARER.fullmatch(value) if name == b"authorization" else None
        if name in _KEY_HEADERS:
            if not secrets.compare_digest(bearer[1] if bearer else value, dummy.encode()):
                return None
            found = True
            value = b"Bearer " + key.encode() if bearer else key.encode()
        swapped.append((name, value))
    return swapped if found else None


@dataclass(slots=True)
class KeyMask:
    """A mask for a key in a stream, also if it is split between two chunks. Other data is not delayed."""

    key: bytes
    held: bytes = b""
    """What was held back: the rest, at the end of the stream."""

    def feed(self, chunk: bytes) -> bytes:
        """Take the next chunk and return what can be passed on."""
        data = (self.held + chunk).replace(self.key, b"*" * len(self.key))
        longest = min(len(data), len(self.key) - 1)
        held = next((n for n in range(longest, 0, -1) if self.key.startswith(data[-n:])), 0)
        self.held = data[len(data) - held :]
        return data[: len(data) - held]


@asynccontextmanager
async def model_proxy(
    listener: socket.socket, route: ModelRoute, dummy: str, outbound: Outbound | None = None, *, offline: bool = False
) -> AsyncIterator[None]:
    """Serve the upstream of the route on the listener, to clients with the dummy key. `offline`: see model_bodies."""
    # The client follows no redirect: the agent may do so itself, with its dummy.
    async with (outbound or Outbound()).client(UPSTREAM_TIMEOUT) as client:
        proxy = _ModelProxy(client, route, dummy, offline)
        async with sockets.serving(listener, proxy.answer):
            yield
    _log.info("model-proxy-closed", forwarded=proxy.forwarded, refused=proxy.refused)


@dataclass(slots=True)
class _ModelProxy:
    client: httpx.AsyncClient
    route: ModelRoute
    dummy: str
    offline: bool
    held_bytes: int = 0
    forwarded: int = 0
    refused: int = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        exchange = _Exchange(reader, writer)
        try:
            asked = await sockets.read_head(reader, exchange.connection)
            headers = self._headers_for_upstream(asked)
            async with asyncio.timeout(REQUEST_SECONDS):
                request = await self._upstream_request(asked, headers, await self._body(exchange))
                async with asyncio.TaskGroup() as group:
                    watching = group.create_task(exchange.until_client_left())
                    forwarding = group.create_task(self._forward(request, exchange))
                    forwarding.add_done_callback(lambda _: watching.cancel())
        except* BadRequestError as errors:
            self.refused += 1
            for error in errors.exceptions:
                if isinstance(error, BadRequestError):
                    exchange.refuse(error.status, str(error))
        except* httpx.HTTPError as errors:
            # Their texts can contain the address, and the address a key.
            _log.warning("model-upstream-failed", errors=[type(error).__name__ for error in errors.exceptions])
            exchange.refuse(502, "The model's server cannot be reached.")
        finally:
            self.held_bytes -= exchange.held_bytes

    def _headers_for_upstream(self, asked: h11.Request) -> list[Header]:
        swapped = swap_key(asked.target, sockets.end_to_end(asked.headers), self.dummy, self.route.key)
        if swapped is None:
            raise BadRequestError(401, "The key is not this turn's.")
        if self.forwarded >= MAX_REQUESTS:
            raise BadRequestError(403, f"This turn has sent the {MAX_REQUESTS} requests to its model that it may send.")
        if not self.route.permits(asked.method, asked.target):
            path = asked.target.partition(b"?")[0][:200].decode("ascii")
            _log.warning("model-request-refused", method=asked.method.decode("ascii"), path=path)
            raise BadRequestError(403, "This request is not one of those that an agent may send to its model.")
        return swapped

    async def _body(self, exchange: "_Exchange") -> bytes:
        pieces = list[bytes]()
        async for piece in exchange.read():
            if self.held_bytes + len(piece) > MAX_BODY_BYTES:
                raise BadRequestError(413, f"Requests of more than {MAX_BODY_BYTES} bytes are too large.")
            self.held_bytes += len(piece)
            exchange.held_bytes += len(piece)
            pieces.append(piece)
        return b"".join(pieces)

    async def _upstream_request(self, asked: h11.Request, headers: list[Header], body: bytes) -> httpx.Request:
        if body and not _is_plain_json(headers):
            raise BadRequestError(415, "A request to a model is JSON, not compressed.")
        if body:
            try:
                await asyncio.to_thread(check_body, body, offline=self.offline)
            except RefusedBodyError as refused:
                _log.warning("model-request-refused", why=str(refused))
                raise BadRequestError(403, f"The request's body is refused. {refused}") from refused
        # The key could not be masked in a compressed answer.
        kept = [*((name, value) for name, value in headers if name not in _NOT_FOR_UPSTREAM), _UNCOMPRESSED]
        base = httpx.URL(self.route.upstream)
        url = base.copy_with(raw_path=base.raw_path.rstrip(b"/") + asked.target)
        return httpx.Request(asked.method.decode("ascii"), url, headers=kept, content=body)

    async def _forward(self, request: httpx.Request, exchange: "_Exchange") -> None:
        key, response = self.route.key.encode(), await self.client.send(request, stream=True)
        async with aclosing(response):
            if response.headers.get("content-encoding", "").lower() not in _DECODED:
                raise httpx.DecodingError("the upstream compressed its answer unasked", request=request)
            self.forwarded += 1
            answer = self.route.answers.begin(request.url.path, response.status_code, response.headers)
            headers = [
                (name, value.replace(key, b"*" * len(key)))
                for name, value in sockets.end_to_end((name.lower(), value) for name, value in response.headers.raw)
                if name not in _NOT_FOR_AGENT
            ]
            headers.append((b"connection", b"close"))
            await exchange.send(h11.Response(status_code=response.status_code, headers=headers))
            mask = KeyMask(key)
            async for chunk in response.aiter_bytes():
                answer.feed(chunk)
                await exchange.send(h11.Data(data=mask.feed(chunk)))
            await exchange.send(h11.Data(data=mask.held))
            answer.end()
            await exchange.send(h11.EndOfMessage())


def _is_plain_json(headers: list[Header]) -> bool:
    """Return whether the body can be read on its way."""
    kinds = [value.partition(b";")[0].strip().lower() for name, value in headers if name == b"content-type"]
    encodings = [value.strip().lower() for name, value in headers if name == b"content-encoding"]
    return kinds == [b"application/json"] and not set(encodings) - {b"identity"}


@dataclass(slots=True)
class _Exchange:
    """One request of the agent and its answer, as HTTP/1.1 messages on its connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    connection: h11.Connection = field(default_factory=lambda: h11.Connection(h11.SERVER))
    held_bytes: int = 0

    async def read(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises BadRequestError if it is malformed."""
        while not isinstance(event := sockets.next_event(self.connection), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                yield bytes(event.data)
                continue
            if self.connection.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            self.connection.receive_data(await self.reader.read(sockets.CHUNK_BYTES))

    async def until_client_left(self) -> None:
        """Wait until the client disconnects after its request, then raise ConnectionError: the answer is not needed."""
        while await self.reader.read(sockets.CHUNK_BYTES):
            pass
        raise ConnectionAbortedError("the client disconnected before the end of the answer")

    async def send(self, event: h11.Event) -> None:
        self.writer.write(self.connection.send(event) or b"")
        await self.writer.drain()

    def refuse(self, status: int, why: str) -> None:
        """Send a refusal unless an answer has begun. An unfinished answer shows the client that something failed."""
        if self.connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.writer.write(sockets.refusal(status, why))
