"""What can be read: worktrees, sessions, conversations, turns, deliveries, rescues, nodes, operations."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any, Final

from bot.api import schemas
from bot.api.calls import LIST_QUERY, MOST_ROWS, Call, CallError, Endpoint, Handler
from bot.api.waiting import tell_why
from bot.store import listings, operations


def _page(rows: Sequence[dict[str, object]], limit: int, key: str) -> dict[str, Any]:
    """Return a page of the `limit` first of the rows, of which one more was read than is shown."""
    shown = rows[:limit]
    after = str(shown[-1][key]) if len(rows) > limit else None
    items = [{name: value for name, value in row.items() if name != "seq"} for row in shown]
    return {"items": items, "next": after}


def _list(statement: str, key: str = "id") -> Handler:
    async def handler(call: Call) -> object:
        return await _rows(call, statement, key)

    return handler


async def _rows(call: Call, statement: str, key: str) -> dict[str, Any]:
    rows = await listings.newest(
        call.connection,
        statement,
        call.asked.limit + 1,
        before=call.asked.after,
        repository=call.asked.repository,
        state=call.asked.state,
    )
    return _page([dict(row) for row in rows], call.asked.limit, key)


async def _worktrees(call: Call) -> object:
    stored = await listings.worktrees(
        call.connection,
        call.asked.limit + 1,
        with_removed=True,
        repository=call.asked.repository,
        state="ready" if call.asked.state == "missing" else call.asked.state,
        before=call.asked.after,
    )
    page = _page([asdict(row) for row in stored], call.asked.limit, "id")
    rows = await asyncio.to_thread(_look, stored[: call.asked.limit], call.ctx.data_dir)
    # A page may have fewer rows than asked for: whether one is missing is known only after a look at the disk.
    return {"items": [row for row in rows if call.asked.state in (None, row["state"])], "next": page["next"]}


def _look(rows: Sequence[listings.Worktree], data_dir: Path) -> list[dict[str, object]]:
    """Return the rows as JSON, those of the node of `data_dir` with what is on the disk."""
    from bot.node.identity import known_id  # the web process has no other use for it

    found, here = [], known_id(data_dir)
    for row in rows:
        item = asdict(row)
        del item["folder"], item["node_id"]
        if row.node_id == here:
            directory = data_dir / row.path
            item["path"] = str(directory)
            if row.state == "ready" and not directory.is_dir():
                item["state"] = "missing"
        found.append(item)
    return found


async def _turns(call: Call) -> object:
    page = await _rows(call, listings.LIST_TURNS, "id")
    await tell_why(call.connection, page["items"], call.ctx.clock())
    return page


async def _turn(call: Call) -> object:
    row = await listings.turn(call.connection, call.id)
    if row is None:
        raise CallError(404, f"There is no turn {call.id}.")
    await tell_why(call.connection, [row], call.ctx.clock())
    return row


async def _costs(call: Call) -> object:
    since = call.ctx.clock().astimezone(UTC).date() - timedelta(days=call.asked.days - 1)
    rows = await listings.costs(call.connection, since, call.asked.repository)
    return {"items": [dict(row) for row in rows], "next": None}


async def _conversation(call: Call) -> object:
    row = await listings.conversation(call.connection, call.id, MOST_ROWS)
    if row is None:
        raise CallError(404, f"There is no conversation {call.id}.")
    await tell_why(call.connection, row["requests"], call.ctx.clock())
    return row


async def _delivery(call: Call) -> object:
    row = await listings.delivery(call.connection, call.asked.path["guid"])
    if row is None:
        raise CallError(404, f"There is no delivery {call.asked.path['guid']}.")
    return row


async def _rescues(call: Call) -> object:
    page = await _rows(call, listings.LIST_RESCUES, "id")
    _tell_expiry(page["items"], call)
    return page


async def _nodes(call: Call) -> object:
    items = await listings.nodes(call.connection, call.asked.state)
    for node in items:
        _tell_expiry(node["kept"], call)
    return {"items": items, "next": None}


def _tell_expiry(kept: Sequence[dict[str, Any]], call: Call) -> None:
    for one in kept:
        one["expires_at"] = one["created_at"] + call.ctx.rescues_kept_for


async def _operation(call: Call) -> object:
    row = await operations.described(call.connection, call.id)
    if row is None:
        raise CallError(404, f"There is no operation {call.id}.")
    return row


def _listed(name: str, summary: str, handler: Handler, answer: schemas.Schema, *states: str) -> Endpoint:
    page = schemas.page_of(answer)
    return Endpoint("GET", f"/{name}", summary, handler, page, query=LIST_QUERY, states=states)


READ: Final[tuple[Endpoint, ...]] = (
    _listed("worktrees", "The checkouts, newest first", _worktrees, schemas.WORKTREE, *schemas.WORKTREE_STATES),
    _listed(
        "sessions",
        "The agents' contexts, newest first",
        _list(listings.LIST_SESSIONS),
        schemas.SESSION,
        "active",
        "ended",
    ),
    _listed(
        "conversations",
        "The threads, newest first",
        _list(listings.LIST_CONVERSATIONS),
        schemas.CONVERSATION,
        "open",
        "closed",
    ),
    Endpoint(
        "GET",
        "/conversations/{id}",
        "A thread with its newest requests and sessions",
        _conversation,
        schemas.WHOLE_CONVERSATION,
    ),
    _listed("turns", "The requests, newest first", _turns, schemas.TURN, *schemas.TURN_STATES),
    Endpoint(
        "GET",
        "/turns/{id}",
        "A request with its text, and what its agent plans, does and says, until they expire",
        _turn,
        schemas.WHOLE_TURN,
    ),
    _listed(
        "deliveries",
        "What was received, newest first",
        _list(listings.LIST_DELIVERIES, "seq"),
        schemas.DELIVERY,
        *schemas.DELIVERY_STATES,
    ),
    Endpoint("GET", "/deliveries/{guid}", "One delivery", _delivery, schemas.DELIVERY),
    _listed(
        "rescues",
        "What was rescued or kept, newest first",
        _rescues,
        schemas.RESCUE,
        "kept",
        "restored",
    ),
    _listed("nodes", "The nodes and their work", _nodes, schemas.NODE, "alive", "silent"),
    Endpoint(
        "GET",
        "/costs",
        "What ended turns cost, by day (UTC) and repository, the latest day first",
        _costs,
        schemas.page_of(schemas.COSTS),
        query=("days", "repo"),
    ),
    Endpoint("GET", "/operations/{id}", "What was asked of a worktree", _operation, schemas.OPERATION),
)
