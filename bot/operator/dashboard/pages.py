"""The pages: what runs and waits, and the API's lists with their filters."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, timedelta
from functools import partial
from typing import Any, Final

from starlette.responses import Response

from bot.care.asked import PruneReport
from bot.operator.api import board_rows, listings, lists, thread_rows
from bot.operator.api.calls import THREAD, ById, CallError, CostsQuery, Endpoint, ListQuery, TurnsQuery
from bot.operator.api.figures import Checks, Costs
from bot.operator.api.rows import ListedDeliveryState
from bot.operator.dashboard.answer import html_of
from bot.operator.dashboard.board import LATELY, board, open_pull_requests
from bot.operator.dashboard.chart import cost_chart, curves, turns_chart
from bot.operator.dashboard.timeline import MOST_TURNS, timeline
from bot.operator.dashboard.visits import PageView, Visit
from bot.store.turns import TurnState

MOST_FAILED_SHOWN: Final = 5
MOST_ENDED_SHOWN: Final = 5
MOST_REPOSITORIES: Final = 8
"""Whose checks the overview shows."""
MOST_OPEN_SHOWN: Final = 50
MOST_READ: Final = 20
"""How many of the latest turns are asked for: some have not ended."""
MOST_STANDING_SHOWN: Final = 20
DAYS_SHOWN: Final = 14
OUTCOME_DAYS: Final = 90


async def _overview(visit: Visit) -> Response:
    failed = await visit.ask(lists.deliveries, ListQuery[ListedDeliveryState](state="failed", limit=MOST_FAILED_SHOWN))
    latest = await visit.ask(lists.turns, TurnsQuery[TurnState](limit=MOST_READ))
    nodes = (await visit.ask(lists.nodes, ListQuery())).items
    measured = [node for node in nodes if node.disk_measured_at is not None]
    return visit.page(
        "overview.html",
        board=await board(visit),
        lately_days=LATELY.days,
        failed=failed,
        ended=[turn for turn in latest.items if turn.finished_at is not None][:MOST_ENDED_SHOWN],
        checks=await _checks(visit),
        nodes=nodes,
        bytes=sum(node.bytes for node in measured) if measured else None,
        silent=sum(node.state == "silent" for node in nodes),
        standing=await _standing(visit),
        # The charts are below what is refreshed.
        days=await _days(visit, 1 if "hx-request" in visit.request.headers else DAYS_SHOWN),
    )


async def _standing(visit: Visit) -> list[dict[str, Any]]:
    async with visit.calls.connection() as connection:
        return await listings.standing(connection, visit.caller.scope, None, MOST_STANDING_SHOWN)


async def _checks(visit: Visit) -> list[Checks]:
    async with visit.calls.connection() as connection:
        found = await board_rows.checks(connection, MOST_REPOSITORIES, visit.caller.scope)
    return list(map(Checks.model_validate, found))


async def _days(visit: Visit, days: int) -> dict[str, Any]:
    """Return how the requests of the last days ended: the sums of all and of today, and the charts."""
    last = visit.now.astimezone(UTC).date()
    since = last - timedelta(days=days - 1)
    async with visit.calls.connection() as connection:
        by_day = {row["day"]: row for row in await listings.days(connection, since, visit.caller.scope)}
    sums = {"total": by_day.pop(None), "today": by_day.get(last)}
    return {**sums, "chart": turns_chart(by_day, last, days), "curves": curves(by_day, last, days)}


def _list(name: str, *, for_operators: bool = False, **more: Any) -> PageView:
    """Return the page of one of the API's lists."""
    return PageView("GET", f"/{name}", partial(_listed, name, **more), for_operators=for_operators)


async def _listed(name: str, visit: Visit, state: str | None = None, **values: Any) -> Response:
    """Show a list; of those in the `state` where none is asked for."""
    listing = lists.LISTS[name]
    asked = visit.asked(listing)
    given = {name: text for name, text in visit.request.query_params.items() if text and name != "after"}
    states = asked.states() if isinstance(asked, ListQuery) else ()
    if states:
        asked = asked.model_copy(update={"state": asked.state or state})
    page = await visit.ask(listing, asked)
    return visit.page(f"{name}.html", page=page, asked=asked, given=given, states=states, **values)


async def _turn(visit: Visit) -> Response:
    item = await visit.ask_here(lists.turn)
    texts, server_url = (item.answer or "", *item.notices), visit.calls.ctx.server_url
    answer, *notices = await asyncio.to_thread(lambda: [html_of(text, server_url) for text in texts])
    return visit.page("turn.html", item=item, answer=answer, notices=notices)


async def _changes(visit: Visit) -> Response:
    """Show what a request changed. It is fetched by the request's page, once that is shown: git needs a while."""
    from bot.operator.dashboard.diff import changed  # the web process has no other use for git
    from bot.operator.dashboard.pictures import pictures_at

    item = await visit.ask_here(lists.turn)
    before, after, data_dir = item.changed_from, item.changed_to, visit.calls.ctx.data_dir
    diff = await changed(data_dir, item.folder, before, after) if before and after else None
    pictures = await pictures_at(data_dir, item.folder, item.pictures) if item.pictures else ()
    return visit.page("changes.html", item=item, diff=diff, pictures=pictures)


async def _picture(visit: Visit) -> Response:
    """Send a picture of a check. What it is says its first bytes; a browser takes it for nothing else."""
    from bot.operator.dashboard.pictures import picture

    item = await visit.ask(lists.turn, lists.turn.parse({"id": visit.request.path_params["id"]}, {}))
    name, data_dir = visit.request.path_params["picture"], visit.calls.ctx.data_dir
    found = await picture(data_dir, item.folder, item.pictures, name) if item.pictures else None
    if found is None:
        raise CallError(404, "There is no such picture on the machine of this page.")
    return Response(found[0], media_type=found[1])


async def _rescues(visit: Visit) -> Response:
    nodes = await visit.ask(lists.nodes, ListQuery())
    kept = [(node, one) for node in nodes.items for one in node.kept]
    return await _listed("rescues", visit, kept=kept)


async def _operation(visit: Visit) -> Response:
    """Show what was asked, with what was asked of other nodes in the same call."""
    first = await visit.ask_here(lists.operation)
    others = [await visit.ask(lists.operation, ById(id=one)) for one in first.beside]
    items = sorted([first, *others], key=lambda one: one.id)
    unfinished = any(one.finished_at is None for one in items)
    aborted = any(isinstance(one.report, PruneReport) and one.report.aborted for one in items)
    return visit.page("operation.html", items=items, first=first, unfinished=unfinished, aborted=aborted)


async def _thread(visit: Visit) -> Response:
    item = await visit.ask_here(lists.conversation)
    unfinished = any(turn.finished_at is None for turn in item.requests)
    events = await timeline(visit, item.id)
    return visit.page("conversation.html", item=item, events=events, most=MOST_TURNS, unfinished=unfinished)


async def _thread_named(visit: Visit) -> Response:
    """Lead from a thread's name to its page."""
    names = visit.request.path_params
    thread = THREAD.fullmatch(f"{names['owner']}/{names['name']}#{names['number']}")
    if thread is None:
        raise CallError(404, "This names no thread.")
    async with visit.calls.connection() as connection:
        named = (f"{thread['owner']}/{thread['name']}", int(thread["number"]))
        found = await thread_rows.conversation_named(connection, *named, visit.caller.scope)
    if found is None:
        raise CallError(404, f"Nothing was asked on {thread[0]} yet.")
    return visit.redirect(f"/conversations/{found}")


async def _one(template: str, endpoint: Endpoint[Any, Any], visit: Visit) -> Response:
    """Show one row."""
    return visit.page(template, item=await visit.ask_here(endpoint))


async def _costs(visit: Visit) -> Response:
    asked = visit.asked(lists.costs)
    rows = (await visit.ask(lists.costs, asked.model_copy(update={"by": "repository"}))).items
    of_people = (await visit.ask(lists.costs, asked.model_copy(update={"by": "person"}))).items
    return visit.page(
        "costs.html",
        items=rows,
        asked=asked,
        total=_sums(rows),
        sums={"Repository": _by_name(rows), "Person": _by_name(of_people)},
        chart=cost_chart(rows, visit.now.astimezone(UTC).date(), asked.days),
    )


async def _outcomes(visit: Visit) -> Response:
    sums = await visit.ask(lists.outcome_sums, CostsQuery(days=OUTCOME_DAYS))
    async with visit.calls.connection() as connection:
        opened = await open_pull_requests(connection, MOST_OPEN_SHOWN, visit.caller.scope)
    return await _listed("outcomes", visit, sums=sums.items, days=OUTCOME_DAYS, opened=opened)


def _by_name(rows: Sequence[Costs]) -> list[dict[str, Any]]:
    """Return the sums of each repository or person, the dearest first."""
    sums = [{"name": name, **_sums([row for row in rows if row.name == name])} for name in {row.name for row in rows}]
    return sorted(sums, key=lambda row: (-row["cost_usd"], row["name"]))


def _sums(rows: Sequence[Costs]) -> dict[str, Any]:
    """Return the sums of the columns; what is unknown counts as nothing."""
    return {name: sum(getattr(row, name) or 0 for row in rows) for name in ("turns", "untold", "tokens", "cost_usd")}


PAGES: Final = (
    PageView("GET", "/", _overview),
    _list("conversations"),
    PageView("GET", "/conversations/{id}", _thread),
    PageView("GET", "/conversations/{owner}/{name}/{number}", _thread_named),
    _list("turns"),
    PageView("GET", "/turns/{id}", _turn),
    PageView("GET", "/turns/{id}/changes", _changes),
    PageView("GET", "/turns/{id}/pictures/{picture}", _picture),
    PageView("GET", "/turns/{id}/steps/{place}", partial(_one, "step.html", lists.step)),
    _list("waiting"),
    _list("worktrees"),
    PageView("GET", "/rescues", _rescues),
    _list("deliveries", state="not-ignored"),
    PageView("GET", "/deliveries/{guid}", partial(_one, "delivery.html", lists.delivery)),
    PageView("GET", "/operations/{id}", _operation),
    PageView("GET", "/costs", _costs),
    PageView("GET", "/outcomes", _outcomes),
    _list("audit", for_operators=True),
    _list("nodes"),
)
