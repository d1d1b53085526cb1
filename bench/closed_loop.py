"""A closed-loop HTTP load: each connection sends its next request when its last one is answered."""

import asyncio
from collections.abc import Callable
from time import perf_counter  # uvloop's clock counts whole milliseconds.
from typing import cast

from bench.load import Answers

ANSWER_SECONDS = 15.0


class _Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self) -> None:
        self._received = b""
        self._answered: asyncio.Future[str] | None = None
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result("closed")

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].split(b"\r", 1)[0]
        if end and len(body) >= int(length or 0) and self._answered is not None and not self._answered.done():
            self._received = b""
            self._answered.set_result(head[9:12].decode())

    async def exchange(self, request: bytes) -> str:
        """Send the request and return the status of its answer."""
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answered

    def close(self) -> None:
        self._transport.close()


async def closed_loop(port: int, request: Callable[[], bytes], connections: int, seconds: float) -> Answers:
    """Send requests for `seconds` over this many connections, and wait for the last answers."""
    return await _over(port, request, [1 << 30] * connections, seconds)


async def burst(port: int, request: Callable[[], bytes], count: int) -> Answers:
    """Send this many requests at once, each over a connection of its own that is open already."""
    return await _over(port, request, [1] * count, ANSWER_SECONDS)


async def _over(port: int, request: Callable[[], bytes], shares: list[int], seconds: float) -> Answers:
    loop, answers = asyncio.get_running_loop(), Answers()
    opened = [await loop.create_connection(_Connection, "127.0.0.1", port) for _ in shares]
    until = perf_counter() + seconds

    async def send(connection: _Connection, count: int) -> None:
        while count and (begun := perf_counter()) < until:
            answers.statuses[await connection.exchange(request())] += 1
            answers.latencies_ms.append((perf_counter() - begun) * 1000)
            count -= 1

    try:
        async with asyncio.timeout(seconds + ANSWER_SECONDS), asyncio.TaskGroup() as group:
            for (_, connection), share in zip(opened, shares, strict=True):
                group.create_task(send(connection, share))
    finally:
        for _, connection in opened:
            connection.close()
    return answers
