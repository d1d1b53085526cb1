"""Doorbells: jobs that carry no work, only the news that some row waits."""

from bot.store.jobs import NewJob


def turns_queue(node: str) -> str:
    """The engine's queue on which a node hears its doorbell (the engine allows 40 bytes, see settings)."""
    return f"turns:{node}"


def turns_bell(node: str) -> NewJob:
    """Tells a node that a turn or a removal of its worktrees waits. It has no lock and names no turn."""
    return NewJob(queue=turns_queue(node), task="turns", lock=None)


def outbox_bell(lane: str) -> NewJob:
    """Tells some worker that the lane has something to write; the lock makes writes of a lane serial."""
    return NewJob(queue="outbox", task="outbox", lock=f"outbox:{lane}", args={"lane": lane})
