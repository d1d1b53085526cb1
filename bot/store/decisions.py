"""The row of a delivery while it is decided."""

from dataclasses import dataclass
from datetime import datetime

from bot.store.database import Connection

LOAD = """
select event, body, conversation, received_at from deliveries where guid = $1 and state = 'received'
"""

BEGIN = """
-- Locked until the transaction ends: of two workers that decide one delivery the second finds it done.
select guid from deliveries where guid = $1 and state = 'received' for update
"""

FINISH = """
update deliveries set state = $2, error = $3, attempts = attempts + 1, finished_at = now() where guid = $1
"""

RECORD_ATTEMPT = """
update deliveries set attempts = attempts + 1, error = $2 where guid = $1 and state = 'received'
"""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A stored delivery that waits to be decided."""

    event: str
    body: bytes
    conversation: str | None
    received_at: datetime


async def load(connection: Connection, guid: str) -> Delivery | None:
    """Return the delivery, None if it was handled."""
    row = await connection.fetchrow(LOAD, guid)
    return Delivery(row["event"], row["body"], row["conversation"], row["received_at"]) if row else None


async def begin(connection: Connection, guid: str) -> bool:
    """Lock the delivery until the transaction ends; False if it was handled meanwhile."""
    return await connection.fetchval(BEGIN, guid) is not None


async def finish(connection: Connection, guid: str, error: str | None = None) -> None:
    """Record that it is done, in the transaction that writes its effects; with `error` it failed for good."""
    await connection.execute(FINISH, guid, "failed" if error else "done", error)


async def record_attempt(connection: Connection, guid: str, problem: str) -> None:
    """Record a failed attempt and its problem; the delivery will be tried again."""
    await connection.execute(RECORD_ATTEMPT, guid, problem)
