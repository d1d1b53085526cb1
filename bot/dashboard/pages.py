"""The pages: what runs and waits, and the API's lists with their filters."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, timedelta
from typing import Any, Final

from starlette.responses import Response

from bot.api.calls import THREAD, CallError
from bot.api.endpoints import ENDPOINTS
from bot.dashboard.chart import cost_chart
from bot.dashboard.login import COOKIE, VALID_FOR, TooManyWrongTokensError
from bot.dashboard.visits import View, Visit
from bot.store import listings

MOST_SHOWN: Final = 20
"""On the overview, of what runs, waits or failed."""
MOST_ENDED_SHOWN: Final = 5
# A path of ours with at most one id: what comes after `next=` may be anybody's.
_OWN_PATH: Final = re.compile(r"/(?:[a-z]+(?:/[A-Za-z0-9-]{1,64})?)?")


async def _overview(visit: Visit) -> Response:
    running = await visit.ask("GET /turns", state="running", limit=MOST_SHOWN)
    queued = await visit.ask("GET /turns", state="queued", limit=MOST_SHOWN)
    failed = await visit.ask("GET /deliveries", state="failed", limit=MOST_SHOWN)
    latest = await visit.ask("GET /turns", limit=MOST_SHOWN)
    nodes = await visit.ask("GET /nodes")
    today = await visit.ask("GET /costs", days=1)
    turns = [await visit.ask("GET /turns/{id}", path={"id": str(turn["id"])}) for turn in running["items"]]
    measured = [node for node in nodes["items"] if node["disk_measured_at"] is not None]
    return visit.page(
        "overview.html",
        running=turns,
        more_run=running["next"],
        queued=queued,
        failed=failed,
        ended=[turn for turn in latest["items"] if turn["finished_at"] is not None][:MOST_ENDED_SHOWN],
        nodes=nodes["items"],
        today=_sums(today["items"]),
        bytes=sum(sum(node["disk"].values()) for node in measured) if measured else None,
        silent=sum(node["state"] == "silent" for node in nodes["items"]),
    )


@dataclass(frozen=True, slots=True)
class _List:
    """A page with one of the API's lists: `/turns` shows `GET /turns`."""

    name: str
    call: str

    async def answer(self, visit: Visit, **values: Any) -> Response:
        endpoint = ENDPOINTS[self.call]
        asked = visit.asked(endpoint)
        answer = await visit.run(endpoint, asked)
        return visit.page(
            f"{self.name}.html",
            items=answer["items"],
            next=answer["next"],
            asked=replace(asked, path={}),
            states=endpoint.states,
            **values,
        )


async def _rescues(visit: Visit) -> Response:
    nodes = await visit.ask("GET /nodes")
    kept = [{**one, "node": node["name"]} for node in nodes["items"] for one in node["kept"]]
    return await _List("rescues", "GET /rescues").answer(visit, kept=kept)


async def _turn(visit: Visit) -> Response:
    return await _one(visit, "turn.html", "GET /turns/{id}")


async def _thread(visit: Visit) -> Response:
    return await _one(visit, "thread.html", "GET /conversations/{id}")


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


async def _delivery(visit: Visit) -> Response:
    return await _one(visit, "delivery.html", "GET /deliveries/{guid}")


async def _operation(visit: Visit) -> Response:
    return await _one(visit, "operation.html", "GET /operations/{id}")


async def _one(visit: Visit, template: str, call: str) -> Response:
    return visit.page(template, item=await visit.ask_here(call))


async def _costs(visit: Visit) -> Response:
    endpoint = ENDPOINTS["GET /costs"]
    asked = visit.asked(endpoint)
    page = await visit.run(endpoint, asked)
    rows = page["items"]
    by_codebase = {name: [row for row in rows if row["codebase"] == name] for name in {row["codebase"] for row in rows}}
    repositories = [{"codebase": name, **_sums(of_one)} for name, of_one in by_codebase.items()]
    return visit.page(
        "costs.html",
        items=rows,
        asked=asked,
        total=_sums(rows),
        repositories=sorted(repositories, key=lambda row: (-(row["cost_usd"]), row["codebase"])),
        chart=cost_chart(rows, visit.now.astimezone(UTC).date(), asked.days),
    )


def _sums(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums of the columns; what is unknown counts as nothing."""
    return {name: sum(row[name] or 0 for row in rows) for name in ("turns", "untold", "tokens", "cost_usd")}


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
    View("GET", "/threads", _List("threads", "GET /conversations").answer),
    View("GET", "/threads/{id}", _thread),
    View("GET", "/threads/{owner}/{name}/{number}", _thread_named),
    View("GET", "/turns", _List("turns", "GET /turns").answer),
    View("GET", "/turns/{id}", _turn),
    View("GET", "/worktrees", _List("worktrees", "GET /worktrees").answer),
    View("GET", "/rescues", _rescues),
    View("GET", "/deliveries", _List("deliveries", "GET /deliveries").answer),
    View("GET", "/deliveries/{guid}", _delivery),
    View("GET", "/operations/{id}", _operation),
    View("GET", "/costs", _costs),
    View("GET", "/nodes", _List("nodes", "GET /nodes").answer),
    View("GET", "/login", _login, is_open=True),
    View("POST", "/login", _sign_in, is_open=True),
    View("POST", "/logout", _sign_out),
)
