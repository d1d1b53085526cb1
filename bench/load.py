"""An open-loop HTTP load: each request is sent when it is due, whether or not earlier ones were answered."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter  # uvloop's clock counts whole milliseconds.

# GitHub's limit: https://docs.github.com/en/webhooks/using-webhooks/best-practices-for-using-webhooks
TIMEOUT_SECONDS = 10.0
# Well below the time for which servers keep an idle connection (uvicorn and node: 5 s).
IDLE_SECONDS = 2.0


@dataclass(slots=True)
class Answers:
    """The answers to one load. A latency counts from when the request was due, so a late start is included."""

    latencies_ms: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)

    def percentile_ms(self, percent: float) -> float:
        """Return the latency in ms that `percent` of the answers did not exceed (nearest rank)."""
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else float("nan")

    @property
    def errors(self) -> int:
        """Return how many requests did not get a 2xx."""
        return sum(count for status, count in self.statuses.items() if not status.startswith("2"))


class Load:
    """Connections to one local server, kept open and reused when free."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, float]] = []

    async def offer(self, request: Callable[[int], bytes], count: int, per_second: float) -> Answers:
        """Send `request(0)`, `request(1)` …, evenly spaced, and wait for the last answer."""
        answers = Answers()
        start = perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                due = start + number / per_second
                await asyncio.sleep(max(0.0, due - perf_counter()))
                group.create_task(self._send(request(number), due, answers))
        return answers

    def close(self) -> None:
        """Close the connections."""
        for _, writer, _ in self._free:
            writer.close()

    async def _send(self, request: bytes, due: float, answers: Answers) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                status = await self._exchange(request)
        except (OSError, EOFError, ValueError) as problem:  # TimeoutError is an OSError.
            status = type(problem).__name__
        answers.statuses[status] += 1
        answers.latencies_ms.append((perf_counter() - due) * 1000)

    async def _exchange(self, request: bytes) -> str:
        reader, writer = await self._connection()
        try:
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = next(line for line in head.split("\r\n") if line.startswith("content-length:"))
            await reader.readexactly(int(length.partition(":")[2]))
        except BaseException:
            writer.close()
            raise
        if "connection: close" in head:
            writer.close()
        else:
            self._free.append((reader, writer, perf_counter()))
        return head.split()[1]

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._free:
            reader, writer, used = self._free.pop()
            if perf_counter() - used < IDLE_SECONDS:
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self._port)
