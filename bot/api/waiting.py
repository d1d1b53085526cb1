"""Why a queued turn does not run yet, in the words of its comment on the thread."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from asyncpg import Record

from bot.messages import reasons, tracking
from bot.messages.formatting import plain
from bot.store import requests
from bot.store.database import Connection
from bot.store.nodes import SILENT_AFTER_SECONDS


async def tell_why(connection: Connection, turns: Sequence[dict[str, Any]], now: datetime) -> None:
    """Add `waiting` to the listed turns: why it waits, None for those that are not queued."""
    queued = [turn["id"] for turn in turns if turn["state"] == "queued"]
    rows = await requests.held_up(connection, queued, SILENT_AFTER_SECONDS, now) if queued else ()
    why = {row["id"]: plain(_why(row, now)) for row in rows}
    for turn in turns:
        turn["waiting"] = why.get(turn["id"])


def _why(row: Record, now: datetime) -> str:
    if row["put_back"]:
        return tracking.waiting(row["put_back"])
    if row["ahead"]:
        line = tracking.queued(row["ahead"], row["wait"])
        return f"{line} {tracking.behind(row['behind'])}" if row["behind"] else line
    if row["held_until"]:
        return tracking.waiting(reasons.waits("github-limit", row["held_until"], now))
    if row["node_is_silent"]:
        return tracking.waiting(reasons.node_is_silent(row["node"]))
    if row["removal_error"]:
        return tracking.waiting(reasons.removal_fails(row["removal_error"]))
    if row["worktree_is_busy"]:
        return tracking.waiting(reasons.WORKTREE_IS_BUSY)
    if row["running"]:
        return tracking.needs_room(row["node"], row["running"], row["running_here"])
    return tracking.queued(0)
