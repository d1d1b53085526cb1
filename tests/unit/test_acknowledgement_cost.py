"""What a delivery costs beside what nobody can leave out: its JSON is read, and its signature computed.

Both are counted in processor time of this process, so that other processes do not matter. `make bench PARTS=receive`
has the figures with a server and a database.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from time import process_time
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from bench.deliveries import Pool as Requests
from bot.inbox.endpoint import PATH, Receiver
from bot.inbox.inbox import Inbox
from bot.store import deliveries
from bot.store.database import Pool
from bot.store.deliveries import NewDelivery, Stored

SECRET, AT_ONCE, ROUNDS, REPETITIONS = "the test's own secret", 16, 12, 8
MOST = 4.5
"""It was 3.4 when this was written, and 4.1 with the headers and answers of a framework and a place to wait for."""


class _Database:
    """A database that stores everything at once."""

    @asynccontextmanager
    async def acquire(self, *, timeout: float) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(terminate=lambda: None, is_closed=lambda: False)


async def _stored(_: object, rows: Sequence[NewDelivery]) -> Stored:
    return Stored(frozenset(row.guid for row in rows), "threadtree")


async def test_a_delivery_costs_little_beside_its_json_and_its_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "store", _stored)
    made = Requests(PATH, SECRET, "@threadtree say hello", mention_every=10, size=AT_ONCE * ROUNDS)
    requests = [_read(made.request()) for _ in range(AT_ONCE * ROUNDS)]
    bodies = [body for _, body in requests]
    receiver = Receiver(Inbox(cast("Pool", _Database())), [SECRET.encode()], "github.com", cast("Any", None))

    def least() -> None:
        for body in bodies:
            orjson.loads(body)
            hmac.digest(SECRET.encode(), body, "sha256")

    async def answered() -> float:
        began = process_time()
        for first in range(0, len(requests), AT_ONCE):
            await asyncio.gather(*(_answer(receiver, *one) for one in requests[first : first + AT_ONCE]))
        return process_time() - began

    costs = [(await answered(), _cost_of(least)) for _ in range(REPETITIONS)]

    ratio = min(cost for cost, _ in costs) / min(cost for _, cost in costs)
    assert ratio < MOST


def _cost_of(work: Callable[[], None]) -> float:
    began = process_time()
    work()
    return process_time() - began


def _read(request: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    head, _, body = request.partition(b"\r\n\r\n")
    fields = (line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    return [(name.lower(), value) for name, value in fields], body


async def _answer(receiver: Receiver, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    statuses = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    await receiver({"type": "http", "path": PATH, "method": "POST", "headers": headers}, receive, send)
    assert statuses[0] == 202
