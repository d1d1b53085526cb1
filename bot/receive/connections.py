"""Limits of the connections to the web part, which anybody may open."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

CONNECTIONS_AT_ONCE = 512
"""Above it clients get 503. Half of the usual limit of open files."""
HEAD_SECONDS = 10.0
HEAD_BYTES = 64 * 1024
IDLE_SECONDS = 150
"""Longer than clients keep an idle connection (httpx 5 s; nginx 60, cloudflared 90, Caddy 120): a server that closes it
first can do so in the moment in which the next request is sent, and that request fails.
"""
IDLE_SECONDS_OF_MANY = 5
"""The same while half of the places or more are taken, so that idle strangers never hold all of them."""


class _Joined:
    """A transport on which a response's head leaves with its body: each packet costs a system call, and wakes the
    client. What nothing follows leaves at the end of the loop's turn.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""
        self.is_closing = transport.is_closing  # asked at each response

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held + data)
        elif data:
            self._held = data
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)


class LimitedHttp(HttpToolsProtocol):
    """uvicorn's connection, closed where a request's head does not arrive in time or is too large.

    uvicorn limits neither: a head that never ends would be kept in memory. How long it may be idle depends on how many
    there are.
    """

    _head_due: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Joined(transport, self.loop))  # type: ignore[arg-type]
        self._head_due = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._in_head:
            return  # also where the whole head was in `data`, as it usually is: a timer costs more than the parsing
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES:
            self._give_up()
        elif self._head_due is None:
            self._head_due = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        many = 2 * len(self.connections) >= CONNECTIONS_AT_ONCE
        self.timeout_keep_alive = IDLE_SECONDS_OF_MANY if many else IDLE_SECONDS
        super().on_response_complete()

    def _end_head(self) -> None:
        self._in_head, self._head_bytes = False, 0
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _give_up(self) -> None:
        self._end_head()
        self.transport.abort()
