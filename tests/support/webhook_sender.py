"""The receive step on a real database, and a sender in GitHub's place."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import lz4.block
import orjson
from starlette.applications import Starlette
from starlette.types import ASGIApp

from bot.inbox.delivery import sign
from bot.inbox.endpoint import BODY_SECONDS, BYTES_IN_FLIGHT, PATH, Receiver
from bot.inbox.inbox import Inbox
from bot.store.database import Pool

SECRET = b"the secret"
OLD_SECRET = b"the secret before"


def comment(number: int = 1, body: str = "@bot fix it") -> dict[str, Any]:
    """Return the fields of an `issue_comment` that receive reads."""
    return {
        "action": "created",
        "issue": {"number": number},
        "comment": {"body": body},
        "repository": {"id": 99, "name": "shop", "owner": {"login": "acme"}},
    }


class Sender:
    """GitHub as a sender of webhooks."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def send(
        self,
        payload: object,
        *,
        event: str = "issue_comment",
        guid: str | None = None,
        secret: bytes = SECRET,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Send `payload`, as JSON unless it is bytes; a header given as an empty string is left out."""
        body = payload if isinstance(payload, bytes) else orjson.dumps(payload)
        all_headers = {
            "X-GitHub-Event": event,
            "X-GitHub-Delivery": guid or str(uuid4()),
            "X-Hub-Signature-256": sign(body, secret),
            "Content-Type": "application/json",
        } | (headers or {})
        raw = [(name.encode(), value.encode("latin-1")) for name, value in all_headers.items() if value]
        return await self._client.post(PATH, content=body, headers=raw)


def receiving_app(
    inbox: Inbox, *, body_seconds: float = BODY_SECONDS, bytes_in_flight: int = BYTES_IN_FLIGHT
) -> ASGIApp:
    """Return an app with only the webhook's path."""
    return Receiver(
        inbox,
        [SECRET, OLD_SECRET],
        "github.com",
        Starlette(),
        body_seconds=body_seconds,
        bytes_in_flight=bytes_in_flight,
    )


@asynccontextmanager
async def sending_to(inbox: Inbox) -> AsyncIterator[Sender]:
    """Yield a sender to an app on `inbox`."""
    transport = httpx.ASGITransport(receiving_app(inbox))
    async with httpx.AsyncClient(transport=transport, base_url="http://bot") as client:
        yield Sender(client)


async def rows(pool: Pool) -> dict[str, dict[str, Any]]:
    """Return the deliveries by GUID, each with its body as it arrived."""
    found = {row["guid"]: dict(row) for row in await pool.fetch("select * from deliveries")}
    for row in found.values():
        if row["body"] is not None:
            row["body"] = lz4.block.decompress(row["body"])
    return found


async def jobs(pool: Pool) -> list[tuple[str, str, str, str]]:
    """Return (queue, task, lock, GUID) of the jobs in the order of work."""
    found = await pool.fetch(
        "select queue_name, task_name, lock, args->>'guid' as guid from procrastinate_jobs order by id"
    )
    return [tuple(row) for row in found]
