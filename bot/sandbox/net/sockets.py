"""HTTP/1.1 servers for one turn: private listeners, one request a connection, none left at the end."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path

import h11
import structlog

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Header = tuple[bytes, bytes]

MAX_CONNECTIONS = 128
# More than connect at once: a connect to a unix socket with a full queue fails, or blocks.
BACKLOG = 1024
LINGER_SECONDS = 5.0
FLUSH_SECONDS = 60.0
CHUNK_BYTES = 64 * 1024
MAX_HEAD_BYTES = 32 * 1024
HEAD_SECONDS = 30.0
# https://www.rfc-editor.org/rfc/rfc9110#section-7.6.1, with what older clients send to proxies.
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authorization te upgrade".split()
)
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})

_log = structlog.get_logger()


@contextmanager
def _short_name(path: Path) -> Iterator[str]:
    """Yield another name of the path: a socket address holds at most 107 bytes."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


@contextmanager
def private_socket(path: Path) -> Iterator[socket.socket]:
    """Yield a 0600 socket bound to the path, which must be free. No other user can ever connect to it."""
    with socket.socket(socket.AF_UNIX) as listener, _short_name(path) as name:
        listener.bind(name)
        try:
            path.chmod(0o600)
            yield listener
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def loopback_socket() -> Iterator[socket.socket]:
    """Yield a socket bound to a free port of 127.0.0.1."""
    with socket.socket(socket.AF_INET) as listener:
        listener.bind(("127.0.0.1", 0))
        # Else each second piece of a streamed answer waits for the client's delayed ACK, 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield listener


async def connect_private(path: Path) -> Streams:
    """Return a connection to the unix socket at the path. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.setblocking(False)
        with _short_name(path) as name:
            await asyncio.get_running_loop().sock_connect(connection, name)
        return await asyncio.open_unix_connection(sock=connection)
    except BaseException:
        connection.close()
        raise


@asynccontextmanager
async def serving(listener: socket.socket, handle: Handler) -> AsyncIterator[None]:
    """Answer HTTP connections of the listener. At the end the listener and all connections are closed.

    An OSError of `handle` means that a client or a server disconnected. Anything else is a bug, which asyncio logs.
    """
    connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = handle if len(connections) < MAX_CONNECTIONS else _refuse
        task = asyncio.create_task(_answered(answer, reader, writer))
        connections[task] = writer
        task.add_done_callback(lambda done: connections.pop(done))

    # Unix sockets and TCP differ only in the address family, which the listener has.
    start = asyncio.start_unix_server if listener.family == socket.AF_UNIX else asyncio.start_server
    async with await start(accept, sock=listener, limit=MAX_HEAD_BYTES, backlog=BACKLOG) as server:
        try:
            yield
        finally:
            server.close()
            left = dict(connections)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            for writer in left.values():
                if not writer.is_closing():  # cancelled before it began
                    writer.transport.abort()


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(refusal(503, f"more than {MAX_CONNECTIONS} connections at once"))


async def _answered(handle: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        async with closed_after(reader, writer):
            await handle(reader, writer)
    except* OSError as errors:
        _log.debug("turn-network-connection-lost", errors=[type(error).__name__ for error in errors.exceptions])


@asynccontextmanager
async def closed_after(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Close the connection at the end. After a normal end, everything written is still sent.

    Input is read for a while: a socket that is closed with unread input discards the answer.
    """
    try:
        yield
        if not writer.is_closing():
            writer.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while await reader.read(CHUNK_BYTES):
                    pass
        writer.close()
        async with asyncio.timeout(FLUSH_SECONDS):
            await writer.wait_closed()
    except BaseException:
        writer.transport.abort()
        raise


class BadRequestError(Exception):
    """The request cannot be answered; `status` is the HTTP status for the client."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


async def read_head(reader: asyncio.StreamReader, connection: h11.Connection) -> h11.Request:
    """Read the head of the request and feed it to the connection. The body stays in the reader.

    The reader's limit bounds the head. Raises BadRequestError, and ConnectionError when the client disconnects.
    """
    try:
        async with asyncio.timeout(HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        raise ConnectionAbortedError("the client disconnected before its request was complete") from error
    except TimeoutError as error:
        raise BadRequestError(408, "the request did not arrive in time") from error
    except asyncio.LimitOverrunError as error:
        raise BadRequestError(431, "the request's head is too large") from error
    connection.receive_data(head)
    if not isinstance(request := next_event(connection), h11.Request):
        raise BadRequestError(400, "not a request")
    return request


def next_event(connection: h11.Connection) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
    """Return what the client sent next. Raises BadRequestError if it is malformed."""
    try:
        return connection.next_event()
    except h11.RemoteProtocolError as error:
        raise BadRequestError(error.error_status_hint, str(error)) from error


def end_to_end(headers: Iterable[Header]) -> list[Header]:
    """Return the headers that a proxy passes on, names in lower case. Those that frame the body always are."""
    headers = list(headers)
    named = {name.strip().lower() for key, value in headers if key == b"connection" for name in value.split(b",")}
    dropped = (_HOP_BY_HOP | named) - _FRAMING
    return [(name, value) for name, value in headers if name not in dropped]


def refusal(status: int, why: str) -> bytes:
    """Return a whole response that ends the connection, in the shape of errors of model APIs."""
    body = json.dumps({"error": {"type": "proxy_error", "message": why}}).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
