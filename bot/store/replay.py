"""Running a stored delivery once more, at somebody's word."""

from typing import Literal

from bot.store.database import Connection
from bot.store.jobs import NewJob, defer, take_turns

FIND_DELIVERY = """
select state, lock_key, body is not null as has_body from deliveries where guid = $1
"""

RECEIVE_AGAIN = """
-- The state is asked for again: another replay may have come first.
update deliveries set state = 'received', error = null, finished_at = null
where guid = $1 and state <> 'received' and body is not null
returning guid
"""

Replay = Literal["replayed", "unknown", "waiting", "nothing-to-run"]
"""`waiting`: it has not been handled yet; `nothing-to-run`: its body is gone, or it never meant anything."""


async def replay(connection: Connection, guid: str) -> Replay:
    """Puts the delivery back to `received`, with a new decide job, in a transaction of its own.

    What it did before is remembered by effect and not done twice.
    """
    async with connection.transaction():
        row = await connection.fetchrow(FIND_DELIVERY, guid)
        if row is None:
            return "unknown"
        if row["state"] == "received":
            return "waiting"
        if row["lock_key"] is None or not row["has_body"]:
            return "nothing-to-run"
        await take_turns(connection, [row["lock_key"]])
        if not await connection.fetchval(RECEIVE_AGAIN, guid):
            return "waiting"
        await defer(connection, NewJob(queue="decide", task="decide", lock=row["lock_key"], args={"guid": guid}))
    return "replayed"
