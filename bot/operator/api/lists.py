"""What can be read: worktrees, sessions, conversations, turns, deliveries, rescues, nodes, costs."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from asyncpg import Record

from bot.care import on_request_rows
from bot.inbox import outcomes as stored_outcomes
from bot.node.node_rows import SILENT_AFTER_SECONDS
from bot.operator.api import audit_rows, figures, listings, rows
from bot.operator.api.calls import (
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
    PageQuery,
    R,
    TurnsQuery,
    get,
)
from bot.store.database import Connection
from bot.store.turns import TurnState
from bot.thread import tracking
from bot.thread.formatting import plain
from bot.turn import request_rows as requests
from bot.turn import waits_rows


async def _rows(call: Call, asked: ListQuery[Any], of: listings.List) -> list[Record]:
    """Return the rows of a page, and one more where another page follows."""
    hidden = asked.state.removeprefix("not-") if asked.state and asked.state.startswith("not-") else None
    state = None if hidden or asked.state == "all" else asked.state
    page = (asked.limit + 1, asked.after, asked.repo, state)
    return await listings.newest(call.connection, of, *page, scope=call.caller.scope, hidden=hidden)


def _page(model: type[R], found: Sequence[Any], asked: PageQuery) -> rows.Page[R]:
    """Return a page of the rows, of which one more was read than is shown."""
    shown = found[: asked.limit]
    after = str(shown[-1]["place"]) if len(found) > asked.limit else None
    return rows.Page(items=[model.model_validate(dict(row)) for row in shown], next=after)


def _whole(model: type[R], found: Sequence[Any]) -> rows.Page[R]:
    """Return the only page of a list."""
    return rows.Page(items=[model.model_validate(dict(row)) for row in found], next=None)


def _one(model: type[R], row: Mapping[str, Any] | None, what: str) -> R:
    """Return the row. Raises CallError where there is none."""
    if row is None:
        raise CallError(404, f"There is no {what}.")
    return model.model_validate(dict(row))


@get("/worktrees", "The checkouts and the orphans among them, newest first")
async def worktrees(call: Call, asked: ListQuery[rows.ListedWorktreeState]) -> rows.Page[rows.Worktree]:
    stored = asked.model_copy(update={"state": "ready"}) if asked.state == "missing" else asked
    found = await _rows(call, stored, "worktrees")
    if asked.state in (None, "not-removed", "orphan"):
        found = sorted([*found, *await _rows(call, asked, "orphans")], key=lambda row: -row["place"])[: asked.limit + 1]
    page = _page(rows.Worktree, found, asked)
    await asyncio.to_thread(_look, page.items, found[: asked.limit], call.ctx.data_dir)
    # A page may have fewer rows than asked for: whether one is missing is known only after a look at the disk.
    page.items = [item for item in page.items if asked.state in (None, "not-removed", item.state)]
    return page


def _look(items: Sequence[rows.Worktree], found: Sequence[Record], data_dir: Path) -> None:
    """Complete the worktrees of the node of `data_dir` with what is on the disk."""
    from bot.node.identity import known_id  # the web process has no other use for it

    here = known_id(data_dir)
    for item, row in zip(items, found, strict=True):
        if row["node_id"] == here:
            directory = data_dir / item.path
            item.path = str(directory)
            if item.state == "ready" and not directory.is_dir():
                item.state = "missing"


@get("/sessions", "The agents' contexts, newest first")
async def sessions(call: Call, asked: ListQuery[rows.SessionState]) -> rows.Page[rows.Session]:
    return _page(rows.Session, await _rows(call, asked, "sessions"), asked)


@get("/conversations", "The threads, newest first")
async def conversations(call: Call, asked: ListQuery[rows.ConversationState]) -> rows.Page[rows.Conversation]:
    return _page(rows.Conversation, await _rows(call, asked, "conversations"), asked)


@get("/conversations/{id}", "A thread with its newest requests and sessions")
async def conversation(call: Call, asked: ById) -> rows.WholeConversation:
    row = await listings.conversation(call.connection, asked.id, MOST_ROWS, call.caller.scope)
    found = _one(rows.WholeConversation, row, f"conversation {asked.id}")
    await tell_why(call.connection, found.requests, call.ctx.clock())
    return found


@get("/turns", "The requests, newest first; queued ones in the order of their line")
async def turns(call: Call, asked: TurnsQuery[TurnState]) -> rows.Page[rows.Turn]:
    more, scope, in_line = asked.limit + 1, call.caller.scope, asked.state == "queued" and not asked.search
    found: Sequence[Any]
    if asked.search:
        given = (asked.after, asked.repo, asked.state, asked.search)
        found = await listings.found_turns(call.connection, more, *given, scope)
    elif in_line:
        found = await listings.turns_in_line(call.connection, more, asked.after, asked.repo, scope)
    else:
        found = await _rows(call, asked, "turns")
    page = _page(rows.Turn, found, asked)
    if in_line and page.next is not None:
        page.next = str((asked.after or 0) + asked.limit)  # a line has places, which are no ids
    await tell_why(call.connection, page.items, call.ctx.clock())
    return page


@get("/waiting", "What waits for a person, oldest first")
async def waiting(call: Call, asked: PageQuery) -> rows.Page[rows.Waiting]:
    of = (asked.limit + 1, asked.after, asked.repo, call.caller.scope, call.caller.login)
    found = await waits_rows.listed(call.connection, *of)
    page = _whole(rows.Waiting, [{**row, "url": _place(call, row)} for row in found[: asked.limit]])
    if len(found) > asked.limit:
        page.next = str((asked.after or 0) + asked.limit)  # a line has places, which are no ids
    return page


def _place(call: Call, row: Mapping[str, Any]) -> str:
    """Return where a person does what a turn waits for."""
    repository, _, number = row["conversation"].partition("#")
    web = f"{call.ctx.server_url}/{repository}"
    if row["pull_request"] is not None:
        return f"{web}/pull/{row['pull_request']}"
    return row["comment_url"] or f"{web}/issues/{number}"


@get("/turns/{id}", "A request with its text, and what its agent plans, does and says, until they expire")
async def turn(call: Call, asked: ById) -> rows.WholeTurn:
    row = await listings.turn(call.connection, asked.id, call.caller.scope)
    found = _one(rows.WholeTurn, row, f"turn {asked.id}")
    await tell_why(call.connection, [found], call.ctx.clock())
    return found


@get("/turns/{id}/steps/{place}", "A step of a request with its output, until that expires")
async def step(call: Call, asked: ByStep) -> rows.WholeStep:
    row = await listings.step(call.connection, asked.id, asked.place, call.caller.scope)
    return _one(rows.WholeStep, row, f"step {asked.place} of turn {asked.id}")


async def tell_why(connection: Connection, listed: Sequence[rows.Turn], now: datetime) -> None:
    """Add why the queued ones wait, in the words of their comments on the thread."""
    queued = {turn.id: turn for turn in listed if turn.state == "queued"}
    for row in await requests.why_turns_wait(connection, [*queued], now, SILENT_AFTER_SECONDS) if queued else ():
        queued[row.id].waiting = plain(tracking.why_it_waits(row, now))


@get("/deliveries", "What was received, newest first")
async def deliveries(call: Call, asked: ListQuery[rows.ListedDeliveryState]) -> rows.Page[rows.Delivery]:
    return _page(rows.Delivery, await _rows(call, asked, "deliveries"), asked)


@get("/deliveries/{guid}", "One delivery")
async def delivery(call: Call, asked: ByGuid) -> rows.OneDelivery:
    row = await listings.delivery(call.connection, asked.guid, call.caller.scope)
    return _one(rows.OneDelivery, row, f"delivery {asked.guid}")


@get("/rescues", "What was rescued or kept, newest first")
async def rescues(call: Call, asked: ListQuery[rows.RescueState]) -> rows.Page[rows.Rescue]:
    found = await _rows(call, asked, "rescues")
    return _page(rows.Rescue, [_with_expiry(row, call) for row in found], asked)


@get("/nodes", "The nodes and their work")
async def nodes(call: Call, asked: ListQuery[rows.NodeState]) -> rows.Page[rows.Node]:
    found = await listings.nodes(call.connection, asked.state, call.caller.scope)
    for row in found:
        row["kept"] = [_with_expiry(one, call) for one in row["kept"]]
    return _whole(rows.Node, found)


def _with_expiry(row: Mapping[str, Any], call: Call) -> dict[str, Any]:
    return {**row, "expires_at": row["created_at"] + call.ctx.rescues_kept_for}


@get("/costs", "What turns cost, by day (UTC) and repository or person, the latest day first")
async def costs(call: Call, asked: CostsQuery) -> rows.Page[figures.Costs]:
    sums = listings.costs_by_person if asked.by == "person" else listings.costs_by_repository
    return _whole(figures.Costs, await sums(call.connection, _first_day(call, asked), asked.repo, call.caller.scope))


@get("/outcomes", "What became of pull requests to whose branches the bot pushed, newest first")
async def outcomes(call: Call, asked: ListQuery[figures.OutcomeState]) -> rows.Page[figures.Outcome]:
    return _page(figures.Outcome, await _rows(call, asked, "outcomes"), asked)


@get("/outcomes/sums", "The same, summed by repository, agent and model")
async def outcome_sums(call: Call, asked: CostsQuery) -> rows.Page[figures.OutcomeSums]:
    of = (_first_day(call, asked), asked.repo, call.caller.scope)
    return _whole(figures.OutcomeSums, await stored_outcomes.sums(call.connection, *of))


def _first_day(call: Call, asked: CostsQuery) -> date:
    return call.ctx.clock().astimezone(UTC).date() - timedelta(days=asked.days - 1)


@get("/audit", "Who did what, newest first")
async def audit(call: Call, asked: AuditQuery) -> rows.Page[rows.AuditEntry]:
    if not call.caller.is_operator:
        raise CallError(403, ONLY_OPERATORS)
    filters = (asked.after, asked.repo, asked.person, asked.since)
    return _page(rows.AuditEntry, await audit_rows.newest(call.connection, asked.limit + 1, *filters), asked)


@get("/operations/{id}", "What was asked of a node")
async def operation(call: Call, asked: ById) -> rows.Operation:
    row = await on_request_rows.described(call.connection, asked.id, scope=call.caller.scope)
    return _one(rows.Operation, row, f"operation {asked.id}")


_OF_THREADS: Final = (worktrees, sessions, conversations, turns, waiting, deliveries)
_LISTED: Final = (*_OF_THREADS, rescues, nodes, costs, outcomes, audit)
LISTS: Final[dict[str, Endpoint[Any, rows.Page[Any]]]] = {one.path.removeprefix("/"): one for one in _LISTED}
READ: Final[tuple[Endpoint[Any, Any], ...]] = (*_LISTED, conversation, turn, step, delivery, operation, outcome_sums)
