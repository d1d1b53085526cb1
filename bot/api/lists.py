"""What can be read: worktrees, sessions, conversations, turns, deliveries, rescues, nodes, costs, operations."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from asyncpg import Record

from bot.api.calls import MOST_ROWS, ByGuid, ById, Call, CallError, CostsQuery, Endpoint, ListQuery, R, endpoint
from bot.api.rows import (
    Conversation,
    ConversationState,
    Costs,
    Delivery,
    ListedWorktreeState,
    Node,
    NodeState,
    Operation,
    Page,
    Rescue,
    RescueState,
    Session,
    SessionState,
    Turn,
    WholeConversation,
    WholeTurn,
    Worktree,
)
from bot.messages import reasons, tracking
from bot.messages.formatting import plain
from bot.model import DeliveryState, TurnState
from bot.store import listings, operations, requests
from bot.store.database import Connection
from bot.store.nodes import SILENT_AFTER_SECONDS
from bot.store.requests import WaitingTurn


async def _rows(call: Call, asked: ListQuery[Any], statement: str, *more: object) -> list[Record]:
    """Return the rows of a page, and one more where another page follows."""
    return await listings.newest(
        call.connection,
        statement,
        asked.limit + 1,
        *more,
        before=asked.after,
        repository=asked.repo,
        state=asked.state,
    )


def _page(model: type[R], rows: Sequence[Any], asked: ListQuery[Any], key: str = "id") -> Page[R]:
    """Return a page of the rows, of which one more was read than is shown."""
    shown = rows[: asked.limit]
    after = str(shown[-1][key]) if len(rows) > asked.limit else None
    return Page(items=[model.model_validate(dict(row)) for row in shown], next=after)


def _one(model: type[R], row: Mapping[str, Any] | None, what: str) -> R:
    """Return the row. Raises CallError where there is none."""
    if row is None:
        raise CallError(404, f"There is no {what}.")
    return model.model_validate(row)


@endpoint("GET", "/worktrees", "The checkouts, newest first")
async def worktrees(call: Call, asked: ListQuery[ListedWorktreeState]) -> Page[Worktree]:
    stored = asked.model_copy(update={"state": "ready"}) if asked.state == "missing" else asked
    rows = await _rows(call, stored, listings.LIST_WORKTREES, True)
    page = _page(Worktree, rows, asked)
    await asyncio.to_thread(_look, page.items, rows, call.ctx.data_dir)
    # A page may have fewer rows than asked for: whether one is missing is known only after a look at the disk.
    page.items = [item for item in page.items if asked.state in (None, item.state)]
    return page


def _look(items: Sequence[Worktree], rows: Sequence[Record], data_dir: Path) -> None:
    """Complete the worktrees of the node of `data_dir` with what is on the disk."""
    from bot.node.identity import known_id  # the web process has no other use for it

    here = known_id(data_dir)
    for item, row in zip(items, rows, strict=False):
        if row["node_id"] == here:
            directory = data_dir / item.path
            item.path = str(directory)
            if item.state == "ready" and not directory.is_dir():
                item.state = "missing"


@endpoint("GET", "/sessions", "The agents' contexts, newest first")
async def sessions(call: Call, asked: ListQuery[SessionState]) -> Page[Session]:
    return _page(Session, await _rows(call, asked, listings.LIST_SESSIONS), asked)


@endpoint("GET", "/conversations", "The threads, newest first")
async def conversations(call: Call, asked: ListQuery[ConversationState]) -> Page[Conversation]:
    return _page(Conversation, await _rows(call, asked, listings.LIST_CONVERSATIONS), asked)


@endpoint("GET", "/conversations/{id}", "A thread with its newest requests and sessions")
async def conversation(call: Call, asked: ById) -> WholeConversation:
    row = await listings.conversation(call.connection, asked.id, MOST_ROWS)
    found = _one(WholeConversation, row, f"conversation {asked.id}")
    await _tell_why(call.connection, found.requests, call.ctx.clock())
    return found


@endpoint("GET", "/turns", "The requests, newest first")
async def turns(call: Call, asked: ListQuery[TurnState]) -> Page[Turn]:
    page = _page(Turn, await _rows(call, asked, listings.LIST_TURNS), asked)
    await _tell_why(call.connection, page.items, call.ctx.clock())
    return page


@endpoint("GET", "/turns/{id}", "A request with its text, and what its agent plans, does and says, until they expire")
async def turn(call: Call, asked: ById) -> WholeTurn:
    row = await listings.turn(call.connection, asked.id)
    found = _one(WholeTurn, row, f"turn {asked.id}")
    await _tell_why(call.connection, [found], call.ctx.clock())
    return found


async def _tell_why(connection: Connection, listed: Sequence[Turn], now: datetime) -> None:
    """Add why the queued ones wait, in the words of their comments on the thread."""
    queued = {turn.id: turn for turn in listed if turn.state == "queued"}
    ids = list(queued)
    rows = await requests.why_turns_wait(connection, ids, SILENT_AFTER_SECONDS, now) if ids else ()
    for row in rows:
        queued[row.id].waiting = plain(_why(row, now))


def _why(turn: WaitingTurn, now: datetime) -> str:
    if turn.obstacle == "time" and turn.reason:
        return tracking.waiting(turn.reason)
    if turn.ahead:
        line = tracking.queued(turn.ahead, turn.wait)
        return f"{line} {tracking.behind(turn.behind)}" if turn.behind else line
    if turn.obstacle == "github-limit" and turn.held_until:
        return tracking.waiting(reasons.waits("github-limit", turn.held_until, now))
    if turn.node_is_silent:
        return tracking.waiting(reasons.node_is_silent(turn.node))
    if turn.removal_error:
        return tracking.waiting(reasons.removal_fails(turn.removal_error))
    if turn.obstacle in ("operation", "directory"):
        return tracking.waiting(reasons.WORKTREE_IS_BUSY)
    if turn.running:
        return tracking.needs_room(turn.node, turn.running, turn.running_here)
    return tracking.queued(0)


@endpoint("GET", "/deliveries", "What was received, newest first")
async def deliveries(call: Call, asked: ListQuery[DeliveryState]) -> Page[Delivery]:
    return _page(Delivery, await _rows(call, asked, listings.LIST_DELIVERIES), asked, "seq")


@endpoint("GET", "/deliveries/{guid}", "One delivery")
async def delivery(call: Call, asked: ByGuid) -> Delivery:
    row = await listings.delivery(call.connection, asked.guid)
    return _one(Delivery, row, f"delivery {asked.guid}")


@endpoint("GET", "/rescues", "What was rescued or kept, newest first")
async def rescues(call: Call, asked: ListQuery[RescueState]) -> Page[Rescue]:
    rows = await _rows(call, asked, listings.LIST_RESCUES)
    return _page(Rescue, [_with_expiry(row, call) for row in rows], asked)


@endpoint("GET", "/nodes", "The nodes and their work")
async def nodes(call: Call, asked: ListQuery[NodeState]) -> Page[Node]:
    rows = await listings.nodes(call.connection, asked.state)
    for row in rows:
        row["kept"] = [_with_expiry(one, call) for one in row["kept"]]
    return Page(items=[Node.model_validate(row) for row in rows], next=None)


def _with_expiry(row: Mapping[str, Any], call: Call) -> dict[str, Any]:
    return {**row, "expires_at": row["created_at"] + call.ctx.rescues_kept_for}


@endpoint("GET", "/costs", "What ended turns cost, by day (UTC) and repository, the latest day first")
async def costs(call: Call, asked: CostsQuery) -> Page[Costs]:
    since = call.ctx.clock().astimezone(UTC).date() - timedelta(days=asked.days - 1)
    rows = await listings.costs(call.connection, since, asked.repo)
    return Page(items=[Costs.model_validate(dict(row)) for row in rows], next=None)


@endpoint("GET", "/operations/{id}", "What was asked of a worktree")
async def operation(call: Call, asked: ById) -> Operation:
    row = await operations.described(call.connection, asked.id)
    return _one(Operation, row, f"operation {asked.id}")


LISTS: Final[dict[str, Endpoint[Any, Page[Any]]]] = {
    "worktrees": worktrees,
    "sessions": sessions,
    "conversations": conversations,
    "turns": turns,
    "deliveries": deliveries,
    "rescues": rescues,
    "nodes": nodes,
    "costs": costs,
}
READ: Final[tuple[Endpoint[Any, Any], ...]] = (*LISTS.values(), conversation, turn, delivery, operation)
