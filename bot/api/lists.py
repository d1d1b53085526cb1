"""What can be read: worktrees, sessions, conversations, turns, deliveries, rescues, nodes, costs, operations."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from asyncpg import Record

from bot.api.calls import (
    MOST_ROWS,
    ONLY_OPERATORS,
    AuditQuery,
    ByGuid,
    ById,
    ByStep,
    Call,
    CallError,
    CostsQuery,
    Endpoint,
    ListQuery,
    R,
    TurnsQuery,
    endpoint,
)
from bot.api.rows import (
    AuditEntry,
    Conversation,
    ConversationState,
    Costs,
    Delivery,
    ListedDeliveryState,
    ListedWorktreeState,
    Node,
    NodeState,
    OneDelivery,
    Operation,
    Outcome,
    OutcomeState,
    OutcomeSums,
    Page,
    Rescue,
    RescueState,
    Session,
    SessionState,
    Turn,
    WholeConversation,
    WholeStep,
    WholeTurn,
    Worktree,
)
from bot.messages import tracking
from bot.messages.formatting import plain
from bot.model import TurnState
from bot.store import audit as stored_audit
from bot.store import costs as stored_costs
from bot.store import listings, operations, requests
from bot.store import outcomes as stored_outcomes
from bot.store.database import Connection
from bot.store.nodes import SILENT_AFTER_SECONDS


async def _rows(call: Call, asked: ListQuery[Any], of: listings.List) -> list[Record]:
    """Return the rows of a page, and one more where another page follows."""
    hidden = asked.state.removeprefix("not-") if asked.state and asked.state.startswith("not-") else None
    state = None if hidden or asked.state == "all" else asked.state
    page = (asked.limit + 1, asked.after, asked.repo, state)
    return await listings.newest(call.connection, of, *page, scope=call.caller.scope, hidden=hidden)


def _page(model: type[R], rows: Sequence[Any], asked: ListQuery[Any] | AuditQuery) -> Page[R]:
    """Return a page of the rows, of which one more was read than is shown."""
    shown = rows[: asked.limit]
    after = str(shown[-1]["place"]) if len(rows) > asked.limit else None
    return Page(items=[model.model_validate(dict(row)) for row in shown], next=after)


def _one(model: type[R], row: Mapping[str, Any] | None, what: str) -> R:
    """Return the row. Raises CallError where there is none."""
    if row is None:
        raise CallError(404, f"There is no {what}.")
    return model.model_validate(dict(row))


@endpoint("GET", "/worktrees", "The checkouts and the orphans among them, newest first")
async def worktrees(call: Call, asked: ListQuery[ListedWorktreeState]) -> Page[Worktree]:
    stored = asked.model_copy(update={"state": "ready"}) if asked.state == "missing" else asked
    rows = await _rows(call, stored, "worktrees")
    if asked.state in (None, "not-removed", "orphan"):
        rows = sorted([*rows, *await _rows(call, asked, "orphans")], key=lambda row: -row["place"])[: asked.limit + 1]
    page = _page(Worktree, rows, asked)
    await asyncio.to_thread(_look, page.items, rows[: asked.limit], call.ctx.data_dir)
    # A page may have fewer rows than asked for: whether one is missing is known only after a look at the disk.
    page.items = [item for item in page.items if asked.state in (None, "not-removed", item.state)]
    return page


def _look(items: Sequence[Worktree], rows: Sequence[Record], data_dir: Path) -> None:
    """Complete the worktrees of the node of `data_dir` with what is on the disk."""
    from bot.node.identity import known_id  # the web process has no other use for it

    here = known_id(data_dir)
    for item, row in zip(items, rows, strict=True):
        if row["node_id"] == here:
            directory = data_dir / item.path
            item.path = str(directory)
            if item.state == "ready" and not directory.is_dir():
                item.state = "missing"


@endpoint("GET", "/sessions", "The agents' contexts, newest first")
async def sessions(call: Call, asked: ListQuery[SessionState]) -> Page[Session]:
    return _page(Session, await _rows(call, asked, "sessions"), asked)


@endpoint("GET", "/conversations", "The threads, newest first")
async def conversations(call: Call, asked: ListQuery[ConversationState]) -> Page[Conversation]:
    return _page(Conversation, await _rows(call, asked, "conversations"), asked)


@endpoint("GET", "/conversations/{id}", "A thread with its newest requests and sessions")
async def conversation(call: Call, asked: ById) -> WholeConversation:
    row = await listings.conversation(call.connection, asked.id, MOST_ROWS, call.caller.scope)
    found = _one(WholeConversation, row, f"conversation {asked.id}")
    await _tell_why(call.connection, found.requests, call.ctx.clock())
    return found


@endpoint("GET", "/turns", "The requests, newest first; queued ones in the order of their line")
async def turns(call: Call, asked: TurnsQuery[TurnState]) -> Page[Turn]:
    more, limit, scope = asked.limit + 1, asked.limit, call.caller.scope
    rows: Sequence[Any]
    if asked.search:
        found = (asked.after, asked.repo, asked.state, asked.search)
        rows = await listings.found_turns(call.connection, more, *found, scope)
    elif asked.state == "queued":
        rows = await listings.turns_in_line(call.connection, more, asked.after, asked.repo, scope)
    else:
        rows = await _rows(call, asked, "turns")
    page = _page(Turn, rows, asked)
    if asked.state == "queued" and not asked.search and page.next is not None:
        page.next = str((asked.after or 0) + limit)  # a line has places, which are no ids
    await _tell_why(call.connection, page.items, call.ctx.clock())
    return page


@endpoint("GET", "/turns/{id}", "A request with its text, and what its agent plans, does and says, until they expire")
async def turn(call: Call, asked: ById) -> WholeTurn:
    row = await listings.turn(call.connection, asked.id, call.caller.scope)
    found = _one(WholeTurn, row, f"turn {asked.id}")
    await _tell_why(call.connection, [found], call.ctx.clock())
    return found


@endpoint("GET", "/turns/{id}/steps/{place}", "A step of a request with its output, until that expires")
async def step(call: Call, asked: ByStep) -> WholeStep:
    row = await listings.step(call.connection, asked.id, asked.place, call.caller.scope)
    return _one(WholeStep, row, f"step {asked.place} of turn {asked.id}")


async def _tell_why(connection: Connection, listed: Sequence[Turn], now: datetime) -> None:
    """Add why the queued ones wait, in the words of their comments on the thread."""
    queued = {turn.id: turn for turn in listed if turn.state == "queued"}
    ids = list(queued)
    rows = await requests.why_turns_wait(connection, ids, now, SILENT_AFTER_SECONDS) if ids else ()
    for row in rows:
        queued[row.id].waiting = plain(tracking.why_it_waits(row, now))


@endpoint("GET", "/deliveries", "What was received, newest first")
async def deliveries(call: Call, asked: ListQuery[ListedDeliveryState]) -> Page[Delivery]:
    return _page(Delivery, await _rows(call, asked, "deliveries"), asked)


@endpoint("GET", "/deliveries/{guid}", "One delivery")
async def delivery(call: Call, asked: ByGuid) -> OneDelivery:
    row = await listings.delivery(call.connection, asked.guid, call.caller.scope)
    return _one(OneDelivery, row, f"delivery {asked.guid}")


@endpoint("GET", "/rescues", "What was rescued or kept, newest first")
async def rescues(call: Call, asked: ListQuery[RescueState]) -> Page[Rescue]:
    rows = await _rows(call, asked, "rescues")
    return _page(Rescue, [_with_expiry(row, call) for row in rows], asked)


@endpoint("GET", "/nodes", "The nodes and their work")
async def nodes(call: Call, asked: ListQuery[NodeState]) -> Page[Node]:
    rows = await listings.nodes(call.connection, asked.state, call.caller.scope)
    for row in rows:
        row["kept"] = [_with_expiry(one, call) for one in row["kept"]]
    return Page(items=[Node.model_validate(row) for row in rows], next=None)


def _with_expiry(row: Mapping[str, Any], call: Call) -> dict[str, Any]:
    return {**row, "expires_at": row["created_at"] + call.ctx.rescues_kept_for}


@endpoint("GET", "/costs", "What turns cost, by day (UTC) and repository or person, the latest day first")
async def costs(call: Call, asked: CostsQuery) -> Page[Costs]:
    since = call.ctx.clock().astimezone(UTC).date() - timedelta(days=asked.days - 1)
    sums = stored_costs.by_person if asked.by == "person" else stored_costs.by_repository
    rows = await sums(call.connection, since, asked.repo, call.caller.scope)
    return Page(items=[Costs.model_validate(dict(row)) for row in rows], next=None)


@endpoint("GET", "/outcomes", "What became of pull requests to whose branches the bot pushed, newest first")
async def outcomes(call: Call, asked: ListQuery[OutcomeState]) -> Page[Outcome]:
    return _page(Outcome, await _rows(call, asked, "outcomes"), asked)


@endpoint("GET", "/outcomes/sums", "The same, summed by repository, agent and model")
async def outcome_sums(call: Call, asked: CostsQuery) -> Page[OutcomeSums]:
    since = call.ctx.clock().astimezone(UTC).date() - timedelta(days=asked.days - 1)
    rows = await stored_outcomes.sums(call.connection, since, asked.repo, call.caller.scope)
    return Page(items=[OutcomeSums.model_validate(row) for row in rows], next=None)


@endpoint("GET", "/audit", "Who did what, newest first")
async def audit(call: Call, asked: AuditQuery) -> Page[AuditEntry]:
    if not call.caller.is_operator:
        raise CallError(403, ONLY_OPERATORS)
    filters = (asked.after, asked.repo, asked.person, asked.since)
    return _page(AuditEntry, await stored_audit.newest(call.connection, asked.limit + 1, *filters), asked)


@endpoint("GET", "/operations/{id}", "What was asked of a worktree or of a node")
async def operation(call: Call, asked: ById) -> Operation:
    row = await operations.described(call.connection, asked.id, scope=call.caller.scope)
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
    "outcomes": outcomes,
    "audit": audit,
}
READ: Final[tuple[Endpoint[Any, Any], ...]] = (
    *LISTS.values(),
    conversation,
    turn,
    step,
    delivery,
    operation,
    outcome_sums,
)
