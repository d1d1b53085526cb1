"""The doorbells of nodes: their workers look for work once the ringing transaction is committed.

A doorbell is a notification whose payload is the node. It names no work, and may get lost: workers also look by
themselves (`bot.worker`, each tick).
"""

from bot.store.database import Connection

TURN_WAITS = "threadtree_turn_waits"
"""A turn was queued, which matters to a worker with a free place: `requests.ENQUEUE` rings."""
WORK_WAITS = "threadtree_work_waits"
"""A turn, an operation or a removal waits, or something no longer holds one up: see `ring_for_work`."""

NOTIFY = "select pg_notify($1, $2)"


async def ring_for_work(connection: Connection, node: str) -> None:
    """Tell the node that a turn, an operation or a removal waits, or that something no longer holds one up."""
    await connection.execute(NOTIFY, WORK_WAITS, node)
