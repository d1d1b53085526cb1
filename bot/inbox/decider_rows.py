"""Rows of deliveries as the decider reads and changes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import uuid4

import lz4.block
import orjson

from bot.model import Target, ThreadRef
from bot.store.database import Connection, Pool, statement
from bot.store.deliveries import NewDelivery

LOAD = """
select event, body, conversation, received_at from deliveries where guid = $1 and state = 'received'
"""

OPERATOR_EVENT = "operator"
"""The event of what an operator asks. GitHub has no such event, and one that claims it is ignored when received."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A stored delivery that waits to be decided; since when is by the database's clock."""

    guid: str
    event: str
    body: bytes
    conversation: str | None
    received_at: datetime


def asked_by_operator(
    action: Literal["create", "retry"], body: Mapping[str, object], conversation: str, lock_key: str
) -> NewDelivery:
    """Return what an operator asks that a worker must decide, with GitHub's help, as a delivery."""
    guid = str(uuid4())
    return NewDelivery(guid, OPERATOR_EVENT, "received", action, conversation, lock_key, orjson.dumps(body))


@statement("update deliveries set turn_id = $2 where guid = $1")
async def note_turn(connection: Connection, guid: str, turn_id: int) -> None:
    """Record the turn that an operator's delivery became."""


async def load(connection: Connection, guid: str) -> Delivery | None:
    """Return a delivery that is to be decided, None if it was handled."""
    row = await connection.fetchrow(LOAD, guid)
    if row is None:
        return None
    body = lz4.block.decompress(row["body"])
    return Delivery(guid, row["event"], body, row["conversation"], row["received_at"])


@statement("""
-- Not where another process has queued the job again, nor while the row is locked: its process may be suspended.
update deliveries set stalls = stalls + 1
where guid = (select guid from deliveries where guid = $1 and state = 'received'
              and exists (select from procrastinate_jobs where id = $2 and status = 'doing')
              for update skip locked)
returning stalls
""")
async def count_stall(connection: Connection, guid: str, job_id: int) -> int | None:
    """Count that the worker of this job died, which decided it; return how often that has happened.

    None if it counts not, or was handled.
    """


@statement("""
-- From its lock, for its body may be what kills workers.
select c.kind as source_kind, null as source_id, c.id as conversation_id, b.*
from deliveries d join conversations c on d.lock_key = c.platform || '/' || c.repository_id || '#' || c.number
join codebases b using (platform, repository_id)
where d.guid = $1
""")
async def thread_of(connection: Connection, guid: str) -> tuple[ThreadRef, Target] | None:
    """Return the thread that the delivery is about, and its own text; None where the bot does not know it."""


@statement("update deliveries set attempts = attempts + 1, error = $2 where guid = $1 and state = 'received'")
async def record_attempt(connection: Connection, guid: str, problem: str) -> None:
    """Record a failed attempt and its problem; the delivery will be tried again."""


@statement("select exists (select from effects where key = any ($1::bytea[]))")
async def any_seen(connection: Connection | Pool, effects: Sequence[bytes]) -> bool:
    """Return whether one of these effect keys is recorded."""
