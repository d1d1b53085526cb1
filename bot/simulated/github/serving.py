"""An ASGI application behind a real HTTP server in the caller's event loop."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HOST = "127.0.0.1"
TRANSPORT = "simulated.transport"
SHUTDOWN_SECONDS = 30
DATE_SECONDS = 1
IDLE_SECONDS = 75
"""Longer than clients keep an idle connection: else the server could close it while they send on it."""


def listen(port: int) -> socket.socket:
    """Return a socket that accepts connections; port 0 means any free port."""
    listener = socket.create_server((HOST, port))
    listener.setblocking(False)
    # Else each answer after the first of a connection waits for the client's delayed ACK, 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


@contextlib.asynccontextmanager
async def serving(application: ASGIApp, listener: socket.socket) -> AsyncIterator[None]:
    """Serve until the block ends. A request's scope holds its connection under `TRANSPORT`."""

    async def until_the_client_leaves(scope: Scope, receive: Receive, send: Send) -> None:
        # A client that is killed in the middle of its request is no fault of the server's.
        with contextlib.suppress(ClientDisconnect):
            await application(scope, receive, send)

    config = uvicorn.Config(
        until_the_client_leaves,
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        date_header=False,
        timeout_keep_alive=IDLE_SECONDS,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await server.ready.wait()
        yield
    finally:
        server.ending.set()
        await task


class _Protocol(HttpToolsProtocol):
    """An HTTP protocol that passes its connection to the application, so that a fault can break it."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[TRANSPORT] = self.transport  # type: ignore[literal-required]


class _Server(uvicorn.Server):
    """A server that reports when it is up, hangs up when it is told to end, and does not handle signals.

    uvicorn's own looks ten times a second whether it is to end, and logs an error if a client takes long to leave.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready, self.ending = asyncio.Event(), asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        while not self.ending.is_set():
            await self.on_tick(0)  # sets the date in answers
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_SECONDS):
                    await self.ending.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in [*self.server_state.connections]:
            connection.transport.abort()
        if running := {*self.server_state.tasks}:
            await asyncio.wait(running, timeout=SHUTDOWN_SECONDS)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
