"""The pages: what runs and waits, and the API's lists with their filters."""

import re
from collections.abc import Sequence
from datetime import UTC, timedelta
from typing import Any, Final

from starlette.responses import Response

from bot.api import lists
from bot.api.calls import THREAD, ById, CallError, CostsQuery, Endpoint, ListQuery
from bot.api.rows import Costs, Page
from bot.dashboard.chart import cost_chart
from bot.dashboard.login import COOKIE, VALID_FOR, TooManyWrongTokensError
from bot.dashboard.visits import View, Visit
from bot.model import DeliveryState, TurnState
from bot.store import listings

MOST_SHOWN: Final = 20
"""On the overview, of what runs, waits or failed."""
MOST_ENDED_SHOWN: Final = 5
# A path of ours with at most one id: what comes after `next=` may be anybody's.
_OWN_PATH: Final = re.compile(r"/(?:[a-z]+(?:/[A-Za-z0-9-]{1,64})?)?")


async def _overview(visit: Visit) -> Response:
    running = await visit.ask(lists.turns, ListQuery[TurnState](state="running", limit=MOST_SHOWN))
    queued = await visit.ask(lists.turns, ListQuery[TurnState](state="queued", limit=MOST_SHOWN))
    failed = await visit.ask(lists.deliveries, ListQuery[DeliveryState](state="failed", limit=MOST_SHOWN))
    latest = await visit.ask(lists.turns, ListQuery(limit=MOST_SHOWN))
    nodes = (await visit.ask(lists.nodes, ListQuery())).items
    today = await visit.ask(lists.costs, CostsQuery(days=1))
    measured = [node for node in nodes if node.disk_measured_at is not None]
    return visit.page(
        "overview.html",
        running=[await visit.ask(lists.turn, ById(id=turn.id)) for turn in running.items],
        more_run=running.next,
        queued=queued,
        failed=failed,
        ended=[turn for turn in latest.items if turn.finished_at is not None][:MOST_ENDED_SHOWN],
        nodes=nodes,
        today=_sums(today.items),
        bytes=sum(sum(node.disk.values()) for node in measured) if measured else None,
        silent=sum(node.state == "silent" for node in nodes),
    )


def _list(name: str, listing: Endpoint[ListQuery[Any], Page[Any]]) -> View:
    """Return the page of one of the API's lists."""

    async def answer(visit: Visit) -> Response:
        return await _listed(visit, name, listing)

    return View("GET", f"/{name}", answer)


async def _listed(visit: Visit, name: str, listing: Endpoint[ListQuery[Any], Page[Any]], **values: Any) -> Response:
    asked = visit.asked(listing)
    page = await visit.ask(listing, asked)
    return visit.page(f"{name}.html", page=page, asked=asked, states=listing.asks.states(), **values)


async def _rescues(visit: Visit) -> Response:
    nodes = await visit.ask(lists.nodes, ListQuery())
    kept = [(node, one) for node in nodes.items for one in node.kept]
    return await _listed(visit, "rescues", lists.rescues, kept=kept)


async def _thread_named(visit: Visit) -> Response:
    """Lead from a thread's name to its page."""
    names = visit.request.path_params
    thread = THREAD.fullmatch(f"{names['owner']}/{names['name']}#{names['number']}")
    if thread is None:
        raise CallError(404, "This names no thread.")
    async with visit.calls.connection() as connection:
        repository = f"{thread['owner']}/{thread['name']}"
        found = await listings.conversation_named(connection, repository, int(thread["number"]))
    if found is None:
        raise CallError(404, f"Nothing was asked on {thread[0]} yet.")
    return visit.redirect(f"/threads/{found}")


def _one(path: str, template: str, endpoint: Endpoint[Any, Any]) -> View:
    """Return the page of one row."""

    async def answer(visit: Visit) -> Response:
        return visit.page(template, item=await visit.ask_here(endpoint))

    return View("GET", path, answer)


async def _costs(visit: Visit) -> Response:
    asked = visit.asked(lists.costs)
    rows = (await visit.ask(lists.costs, asked)).items
    names = {row.codebase for row in rows}
    repositories = [{"codebase": name, **_sums([row for row in rows if row.codebase == name])} for name in names]
    return visit.page(
        "costs.html",
        items=rows,
        asked=asked,
        total=_sums(rows),
        repositories=sorted(repositories, key=lambda row: (-row["cost_usd"], row["codebase"])),
        chart=cost_chart(rows, visit.now.astimezone(UTC).date(), asked.days),
    )


def _sums(rows: Sequence[Costs]) -> dict[str, Any]:
    """Return the sums of the columns; what is unknown counts as nothing."""
    return {name: sum(getattr(row, name) or 0 for row in rows) for name in ("turns", "untold", "tokens", "cost_usd")}


async def _login(visit: Visit) -> Response:
    return visit.page("login.html", next=_next(visit), problem=None)


async def _sign_in(visit: Visit) -> Response:
    form = await visit.form()
    client = visit.request.client
    try:
        cookie = visit.login.sign_in(form.get("token", ""), client.host if client else "")
    except TooManyWrongTokensError:
        raise CallError(429, "Wrong tokens were given too often. Wait a minute, then try again.") from None
    if cookie is None:
        return visit.page("login.html", status=401, next=_next(visit), problem="This is not the ADMIN_TOKEN.")
    answer = visit.redirect(_next(visit))
    visit.keep(answer, COOKIE, cookie, int(VALID_FOR / timedelta(seconds=1)))
    return answer


def _next(visit: Visit) -> str:
    """Return where the browser wanted to go."""
    wanted = visit.request.query_params.get("next", "/")
    return wanted if _OWN_PATH.fullmatch(wanted) else "/"


async def _sign_out(visit: Visit) -> Response:
    visit.login.sign_out(visit.cookie)
    answer = visit.redirect("/login")
    visit.drop(answer, COOKIE)
    return answer


PAGES: Final = (
    View("GET", "/", _overview),
    _list("threads", lists.conversations),
    _one("/threads/{id}", "thread.html", lists.conversation),
    View("GET", "/threads/{owner}/{name}/{number}", _thread_named),
    _list("turns", lists.turns),
    _one("/turns/{id}", "turn.html", lists.turn),
    _list("worktrees", lists.worktrees),
    View("GET", "/rescues", _rescues),
    _list("deliveries", lists.deliveries),
    _one("/deliveries/{guid}", "delivery.html", lists.delivery),
    _one("/operations/{id}", "operation.html", lists.operation),
    View("GET", "/costs", _costs),
    _list("nodes", lists.nodes),
    View("GET", "/login", _login, is_open=True),
    View("POST", "/login", _sign_in, is_open=True),
    View("POST", "/logout", _sign_out),
)
