"""The API on rows: who may call it, what it answers, held against its own OpenAPI document."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import asyncpg
import httpx
import pytest
import pytest_asyncio
from jsonschema import Draft202012Validator
from starlette.applications import Starlette
from starlette.requests import Request

from bot.operator.api import events
from bot.operator.api.app import api_routes, openapi
from bot.operator.api.calls import ApiContext, Calls
from bot.operator.api.events import NAMES, News
from bot.operator.api.rows import Delivery, Row, Session, Turn, Waiting, Worktree
from bot.serve.web import NO_API, NO_DASHBOARD
from bot.store.database import Pool, database
from tests.support.asks import asks
from tests.support.doorbells import Rung
from tests.support.node_id import record
from tests.support.past import A_PAST
from tests.support.patience import PATIENCE_SECONDS
from tests.support.postgres import execute

KEPT_FOR = (timedelta(days=180), timedelta(hours=1))
TOKEN = "a token of the tests, long enough".replace(" ", "-")
FAILED = "22222222-aaaa-4bbb-8ccc-dddddddddddd"
VALUES = {"id": "1", "guid": FAILED, "place": "1"}
OPERATIONS = [(method.upper(), path) for path, methods in openapi()["paths"].items() for method in methods]
LISTS = [
    path
    for method, path in OPERATIONS
    if method == "GET" and "{" not in path and path not in ("/api/events", "/api/costs", "/api/outcomes/sums")
]
CHANGED = """
select (select count(*) from operations), (select count(*) from turns), (select count(*) from deliveries),
       (select count(*) from outbox),
       (select max(updated_at) from worktrees)
"""
RESCUE = """
insert into rescues (worktree_id, ref, conversations, branch, files, commits, bytes, created_at)
values (2, 'refs/threadtree/rescue/2/1', '{9}', '<script>', 2, 1, 4096, '2026-05-02 12:00Z'),
       (1, 'refs/threadtree/rescue/1/1', '{1, 4}', null, 0, 1, 12, '2026-05-02 12:00Z');
insert into outcomes (platform, repository_id, number, branch, opened_at, closed_at, merged, rewritten)
select platform, repository_id, number, 'one', now(), now(), number = 7, false
from codebases, unnest(array[7, 8]) number where name = 'hello';
insert into audit (person, channel, action, target)
values ('ada', 'thread', 'stop', 'octo/hello#1'), ('olga', 'dashboard', 'reset', 'worktree 1');
"""


def address(path: str) -> str:
    return re.sub(r"{(\w+)}", lambda name: VALUES[name[1]], path)


class Api:
    """A client that holds every answer against the OpenAPI document."""

    def __init__(self, app: Starlette) -> None:
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://threadtree.test")

    async def __call__(self, method: str, path: str, status: int = 200, token: str | None = TOKEN, **more: Any) -> Any:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        answer = await self.client.request(method, path, headers=headers, **more)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["cache-control"] == "no-store"
        content = answer.json()
        schema = self._schema(method, path.partition("?")[0], status)
        Draft202012Validator({**schema, "components": openapi()["components"]}).validate(content)
        return content

    def _schema(self, method: str, path: str, status: int) -> Any:
        for template, methods in openapi()["paths"].items():
            if re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), path) and method.lower() in methods:
                answers = methods[method.lower()]["responses"]
                found = answers.get(str(status)) or answers[f"{status // 100}XX"]
                return found["content"]["application/json"]["schema"]
        assert status in (401, 404, 405), f"{method} {path} is not in the document"
        return {"type": "object", "required": ["error"]}


@pytest_asyncio.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    await execute(database_url, A_PAST, RESCUE)
    async with database(database_url, size=4) as opened:
        yield opened


def app(pool: Pool, database_url: str, directory: Path) -> Starlette:
    ctx = ApiContext(
        "github.com",
        "https://github.com",
        directory,
        timedelta(days=180),
        timedelta(hours=1),
        lambda: datetime.now(UTC),
    )
    return Starlette(routes=api_routes(Calls(pool, ctx), TOKEN, News(database_url)))


@pytest.fixture
def api(pool: Pool, database_url: str, tmp_path: Path) -> Api:
    return Api(app(pool, database_url, tmp_path))


async def test_each_endpoint_wants_the_token(pool: Pool, database_url: str, tmp_path: Path) -> None:
    for method, path in OPERATIONS:
        before = await pool.fetchrow(CHANGED)
        closed, opened = Api(Starlette(routes=[NO_API])), Api(app(pool, database_url, tmp_path))
        for token in (None, TOKEN, ""):
            await closed(method, address(path), 404, token)
        for token in (None, "", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper()):
            await opened(method, address(path), 401, token)
        for header in (f"Basic {TOKEN}", TOKEN, "Bearer \xe9", "bearer"):
            raw = {b"Authorization": header.encode("latin-1")}
            answer = await opened.client.request(method, address(path), headers=raw)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        assert await pool.fetchrow(CHANGED) == before


async def test_without_a_token_the_root_says_who_answers() -> None:
    transport = httpx.ASGITransport(Starlette(routes=[NO_API, NO_DASHBOARD]))
    async with httpx.AsyncClient(transport=transport, base_url="http://threadtree.test") as client:
        answer = await client.get("/")
        other = await client.get("/threads")
    assert (answer.status_code, other.status_code) == (404, 404)
    assert "ADMIN_TOKEN" in answer.text


async def test_the_document_is_openapi_3_1_and_names_every_path_of_the_design(api: Api) -> None:
    document = openapi()
    assert document["openapi"] == "3.1.0"
    for method, path in (
        *(("GET", "/api/worktrees"), ("POST", "/api/worktrees"), ("DELETE", "/api/worktrees/{id}")),
        *(("POST", "/api/worktrees/{id}/reset"), ("POST", "/api/rescues/{id}/restore")),
        *(("DELETE", "/api/rescues/{id}"), ("POST", "/api/worktrees/{id}/restore")),
        *(("POST", "/api/worktrees/{id}/touch"), ("GET", "/api/sessions"), ("GET", "/api/conversations")),
        *(("GET", "/api/turns"), ("POST", "/api/turns/{id}/stop"), ("POST", "/api/turns/{id}/retry")),
        *(("GET", "/api/deliveries"), ("POST", "/api/deliveries/{guid}/replay"), ("GET", "/api/rescues")),
        *(("GET", "/api/nodes"), ("GET", "/api/outcomes"), ("GET", "/api/waiting"), ("GET", "/api/events")),
    ):
        assert (method, path) in OPERATIONS
    answer = await api.client.get("/api/openapi.json", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.json() == document


def test_the_json_has_the_fields_that_scripts_rely_on_in_their_order() -> None:
    cases: list[tuple[type[Row], str]] = [
        (Worktree, "id codebase path branch node state conversations created_at updated_at"),
        (
            Session,
            "id conversation agent assistant_session_id active created_at last_active_at ended_at end_reason",
        ),
        (Delivery, "guid event action conversation state received_at attempts error"),
        (
            Turn,
            "id conversation state reason verb title requested_by comment_url agent model cost_usd tokens"
            " started_at finished_at waits_for",
        ),
        (Waiting, "turn conversation title waits_for since requested_by url"),
    ]
    for row, fields in cases:
        assert [name for name in row.model_fields if name in fields.split()] == fields.split()
        assert all(hasattr(row, name) or name in row.model_fields for name in row.COLUMNS)


async def test_a_refused_argument_is_named_with_what_can_be_given(api: Api) -> None:
    for query, sentence in (
        ("limit=201", "limit cannot be '201'; give the rows of a page, 1 to 200."),
        ("repo=octo", "repo cannot be 'octo'; give a repository, as owner/name."),
        ("state=gone", "state cannot be 'gone'; give one of 'active' or 'ended'."),
        ("nonsense=1", "There is no parameter 'nonsense' here."),
        ("after=1&after=2", "after is given twice."),
    ):
        assert (await api("GET", f"/api/sessions?{query}", 400))["error"] == sentence
    body = await api("POST", "/api/worktrees", 400, json={})
    assert body["error"] == "conversation is missing; give an issue or a pull request, as owner/repo#42."


async def test_a_list_read_page_by_page_is_the_whole_list(api: Api) -> None:
    for path in LISTS:
        whole = (await api("GET", path))["items"]
        assert whole
        pages, after = [], ""
        while True:
            page = await api("GET", f"{path}?limit=1{after}")
            pages += page["items"]
            if page["next"] is None or path == "/api/nodes":
                break
            after = f"&after={page['next']}"
        assert pages == whole


async def test_lists_are_filtered_by_repository_and_state(api: Api, tmp_path: Path) -> None:
    async def found(path: str, key: str = "id") -> list[object]:
        return [row[key] for row in (await api("GET", path))["items"]]

    record(tmp_path, "here")
    assert await found("/api/worktrees?repo=Octo/hello") == [1]
    assert await found("/api/worktrees?state=removed") == [2]
    assert await found("/api/worktrees?state=missing") == [1], "its directory is not there"
    [path] = await found("/api/worktrees?state=missing", "path")
    assert Path(str(path)).is_absolute(), "as the command line shows it"
    assert await found("/api/worktrees?state=ready", "state") == []
    assert await found("/api/sessions?state=active") == [2]
    assert await found("/api/turns?repo=octo/world", "conversation") == ["octo/world#9"]
    assert await found("/api/turns?state=failed&repo=octo/hello") == [2]
    assert await found("/api/turns?repo=octo/nothing") == []
    for search in ("one", "ADA one", "logi loop", "octo/hello#1", "OCTO hello 1"):
        assert await found(f"/api/turns?search={quote(search)}") == [1], search
    assert await found("/api/turns?search=ada") == [2, 1]
    assert await found("/api/turns?search=ada&state=failed&repo=octo/hello") == [2]
    for search in ("ne", "octo/hello#9", "octo/none#1", "ada & !one | 'two", "\\'%3A*", "%22"):
        assert await found(f"/api/turns?search={search.replace(chr(35), '%23').replace('&', '%26')}") == [], search
    assert await found("/api/deliveries?state=not-ignored", "guid") == [FAILED]
    assert await found("/api/deliveries?state=all", "event") == ["issue_comment", "ping"]
    assert await found("/api/conversations?state=closed") == []
    assert await found("/api/deliveries?repo=octo/hello", "guid") == [FAILED]
    assert await found("/api/deliveries?state=ignored", "event") == ["ping"]
    assert await found("/api/rescues?repo=octo/world", "branch") == ["<script>"], "JSON escapes nothing, and is no HTML"
    assert await found("/api/rescues?state=restored") == []
    assert await found("/api/nodes", "state") == ["alive"]
    assert await found("/api/nodes?state=silent") == []


async def test_a_turn_has_its_request_cost_and_steps(api: Api, database_url: str) -> None:
    await execute(
        database_url,
        "insert into steps (turn_id, place, words) values (1, 2, 'Read a.txt')",
        "update turns set answer = E'Mended.\\n\\nCommit: Mend it', pushed_to = 'b', head_before = 'c',"
        " pushed_head = 'd' where id = 1",
        "update turns set plan = '{pending Test it}', latest_words = 'I begin.' where id = 1",
        "insert into turns (conversation_id, requested_by_id, state, finished_at)"
        " select conversation_id, 1, 'done', now() from turns where id = 1",
        asks("turns where id = 4", "Use tabs.", "maria"),
        "update requests set joins = 1, is_told = true where turn_id = 4",
    )
    turn = await api("GET", "/api/turns/1")
    assert (turn["request"], turn["cost_usd"], turn["agent"], turn["model"]) == ("one", 0.25, "custom", "a-model")
    steps = [(step["place"], step["words"], step["output_bytes"]) for step in turn["steps"]]
    assert steps == [(1, "make test", 9), (2, "Read a.txt", None)]
    assert (await api("GET", "/api/turns/1/steps/1"))["output"] == "60 passed"
    assert (turn["verb"], turn["title"], turn["thread_title"]) == ("work", "one", "Login loops")
    assert turn["answer"] == "Mended."
    assert (turn["branch"], turn["changed_from"], turn["changed_to"]) == ("b", "c", "d")
    [added] = turn["added"]
    assert (added["requested_by"], added["text"]) == ("maria", "Use tabs.")
    assert (turn["previous"], turn["next"]) == (None, added["turn"])
    assert (turn["plan"], turn["latest_words"]) == ([{"state": "pending", "text": "Test it"}], "I begin.")
    assert turn["expired"] is False
    assert (await api("GET", f"/api/deliveries/{FAILED}"))["error"] == "GitHub answered 502"
    conversation = (await api("GET", "/api/conversations?repo=octo/hello"))["items"][0]
    assert (conversation["conversation"], conversation["turns"], conversation["cost_usd"]) == ("octo/hello#1", 2, 0.25)


async def test_queued_requests_are_listed_in_the_order_of_their_line(api: Api, pool: Pool) -> None:
    await pool.execute(
        "insert into turns (conversation_id, requested_by_id, round) values (3, 8, 1), (3, 9, 0), (1, 7, 0)"
    )
    await pool.execute(asks("turns where id > 3", "more", "bob", "issue"))
    assert [one["id"] for one in (await api("GET", "/api/turns?state=queued"))["items"]] == [3, 5, 6, 4]
    first = await api("GET", "/api/turns?state=queued&limit=3&repo=octo/world")
    assert ([one["id"] for one in first["items"]], first["next"]) == ([3, 5, 4], None)
    first = await api("GET", "/api/turns?state=queued&limit=3")
    rest = await api("GET", f"/api/turns?state=queued&limit=3&after={first['next']}")
    assert [one["id"] for one in (*first["items"], *rest["items"])] == [3, 5, 6, 4]


async def test_the_cost_is_told_by_day_and_repository(api: Api, pool: Pool) -> None:
    await pool.execute("update turns set finished_at = date_trunc('day', now(), 'UTC') where id = 1")
    await pool.execute("update turns set finished_at = date_trunc('day', now(), 'UTC') - interval '1 s' where id = 2")
    today = datetime.now(UTC).date()
    one = {"codebase": "octo/hello", "person": None, "turns": 1, "untold": 0, "cost_usd": 0.25, "tokens": 1200}
    other = {"codebase": "octo/hello", "person": None, "turns": 1, "untold": 1, "cost_usd": None, "tokens": None}
    both = [{"day": today.isoformat(), **one}, {"day": (today - timedelta(days=1)).isoformat(), **other}]
    assert (await api("GET", "/api/costs"))["items"] == both
    assert (await api("GET", "/api/costs?days=1&repo=Octo/hello"))["items"] == both[:1]
    assert (await api("GET", "/api/costs?repo=octo/world"))["items"] == []
    by_person = (await api("GET", "/api/costs?days=1&by=person"))["items"]
    assert by_person == [{"day": today.isoformat(), **one, "codebase": None, "person": "ada"}]


async def test_a_node_tells_what_it_keeps_that_no_rescue_names(api: Api, pool: Pool) -> None:
    directory = {"bytes": 5, "created_at": "2026-05-02T12:00:00+00:00"}
    kept = json.dumps([{"name": name, **directory} for name in ("damaged", "listed")])
    await pool.execute("update nodes set kept = $1 where id = 'here'", kept)
    await pool.execute("update rescues set ref = null, kept = 'listed' where worktree_id = 1")
    [node] = [node for node in (await api("GET", "/api/nodes"))["items"] if node["id"] == "here"]
    times = {"created_at": "2026-05-02T12:00:00Z", "expires_at": "2026-10-29T12:00:00Z"}
    assert node["kept"] == [{"name": "damaged", "bytes": 5, **times}]
    assert (await api("GET", "/api/rescues"))["items"][0]["expires_at"] == times["expires_at"]


async def test_a_queued_turn_says_what_it_waits_for_in_the_words_of_its_comment(api: Api, pool: Pool) -> None:
    async def waits() -> str:
        [item] = (await api("GET", "/api/turns?state=queued"))["items"]
        assert (await api("GET", "/api/turns/3"))["waiting"] == item["waiting"]
        return str(item["waiting"])

    done = (await api("GET", "/api/turns/1"))["waiting"]
    assert done is None
    await pool.execute("update turns set worktree_id = 1 where id = 3")
    assert await waits() == "Queued. This starts in a moment."
    await pool.execute("update worktrees set state = 'removing' where id = 1")
    assert await waits() == "Waiting. Its worktree is being removed, reset, restored or set up."
    await pool.execute("update worktrees set state = 'ready' where id = 1")
    await pool.execute("update nodes set heartbeat_at = now() - interval '1 hour'")
    assert await waits() == (
        "Waiting. The node here gives no sign of life. A live node takes over its requests, if there is one."
    )
    await pool.execute("insert into writers values ('github.com/token', now() + interval '1 hour')")
    assert (await waits()).startswith("Waiting. GitHub's limit of requests for the bot is used up. The next try is ")
    await pool.execute("update turns set state = 'running', claim = gen_random_uuid(), finished_at = null where id = 2")
    await pool.execute("update turns set worktree_id = 1 where id = 2")
    assert await waits() == (
        "Queued. One request is ahead of this one. The next is of octo/hello#4, in the same worktree."
    )
    await pool.execute("update turns set not_before = now() + interval '1 h', reason = 'GitHub is away.' where id = 3")
    assert await waits() == "Waiting. GitHub is away."
    await pool.execute("update turns set not_before = null, worktree_id = null where id = 3")
    await pool.execute("delete from writers")
    await pool.execute("update nodes set heartbeat_at = now()")
    assert await waits() == (
        "Queued. This starts when the node here has room. It works on 1 request, 1 of this repository."
    )


async def test_what_is_wrong_with_a_call_is_said_and_changes_nothing(api: Api, pool: Pool) -> None:
    for method, path, status in [
        ("GET", "/api/turns?limit=0", 400),
        ("GET", "/api/turns?limit=201", 400),
        ("GET", "/api/turns?limit=-1", 400),
        ("GET", "/api/turns?limit=99999999999999999999", 400),
        ("GET", "/api/turns?after=x", 400),
        ("GET", "/api/turns?after=9999999999999999999", 400),
        ("GET", "/api/turns?after=1&after=2", 400),
        ("GET", "/api/turns?state=missing", 400),
        ("GET", "/api/turns?repo=octo", 400),
        ("GET", "/api/turns?repo=octo/a%00b", 400),
        ("GET", "/api/turns?repo='or+1=1--/x", 400),
        ("GET", "/api/turns?nonsense=1", 400),
        ("GET", "/api/turns/1?limit=1", 400),
        ("GET", "/api/turns/1?id=2", 400),
        ("POST", "/api/turns/3/stop?id=3", 400),
        ("GET", "/api/turns?days=1", 400),
        ("GET", "/api/costs?days=0", 400),
        ("GET", "/api/costs?days=367", 400),
        ("GET", "/api/costs?days=x", 400),
        ("GET", "/api/costs?limit=1", 400),
        ("GET", "/api/turns/99", 404),
        ("GET", "/api/turns/x", 404),
        ("GET", "/api/turns/%00", 404),
        ("GET", "/api/turns/99999999999999999999", 404),
        ("GET", "/api/turns/-1", 404),
        ("GET", "/api/turns/1%F0%9F%98%80", 404),
        ("GET", "/api/deliveries/none", 404),
        ("GET", "/api/deliveries/%27", 404),
        ("GET", "/api/operations/1", 404),
        ("GET", "/api/nonsense", 404),
        ("GET", "/api", 404),
        ("GET", "/api/", 404),
        ("GET", "/api/turns/", 404),
        ("PUT", "/api/turns", 405),
        ("DELETE", "/api/turns/1", 405),
        ("GET", "/api/worktrees/1/reset", 405),
        ("POST", "/api/worktrees/99/reset", 404),
        ("POST", "/api/rescues/99/restore", 404),
        ("DELETE", "/api/rescues/99", 404),
        ("DELETE", "/api/worktrees/99", 404),
        ("POST", "/api/worktrees/2/reset", 409),
        ("POST", "/api/worktrees/2/touch", 409),
        ("POST", "/api/turns/1/stop", 409),
        ("POST", "/api/turns/1/retry", 409),
        ("POST", "/api/turns/99/stop", 404),
        ("POST", "/api/turns/99/retry", 404),
        ("POST", "/api/deliveries/11111111-aaaa-4bbb-8ccc-dddddddddddd/replay", 409),
        ("POST", "/api/deliveries/none/replay", 404),
    ]:
        answer = await api.client.request(method, path, headers={"Authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == status, answer.text
        assert list(answer.json()) == ["error"]
        assert await pool.fetchval("select (select count(*) from turns) + (select count(*) from operations)") == 3
        assert await pool.fetchval("select count(*) from deliveries") == 2


async def test_a_bad_body_is_refused(api: Api, pool: Pool) -> None:
    for body, status in [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"null", 400),
        (b"\xff", 400),
        (b"{}", 400),
        (b'{"conversation": 1}', 400),
        (b'{"conversation": "octo/hello"}', 400),
        (b'{"conversation": "octo/hello#1\\n"}', 400),
        (b'{"conversation": "octo/hello#99999999999"}', 400),
        (b'{"conversation": "../..#1\\u0000"}', 400),
        (b'{"conversation": "octo/hello#1", "more": "x"}', 400),
        (b'{"conversation": "' + b"x" * 5000 + b'"}', 413),
        (b"[" * 4000, 400),
    ]:
        await api("POST", "/api/worktrees", status, content=body)
        assert await pool.fetchval("select count(*) from deliveries") == 2


async def test_what_changes_a_worktree_is_a_turn_and_what_deletes_a_rescue_an_operation_of_its_node(
    api: Api, pool: Pool, rung: Rung
) -> None:
    asked = [
        await api("POST", "/api/worktrees/1/reset", 202),
        await api("POST", "/api/worktrees/2/restore", 202, content=b"{}"),
        await api("DELETE", "/api/worktrees/1", 202),
        await api("POST", "/api/rescues/1/restore", 202),
    ]
    turns = [await api("GET", f"/api/turns/{answer['turn']}") for answer in asked]
    rows = await pool.fetch("select worktree_id, verb from turns t join requests on turn_id = t.id where t.id > 3")
    assert [tuple(row) for row in rows] == [(1, "reset"), (2, "restore"), (1, "remove"), (2, "restore")]
    assert {(turn["state"], turn["requested_by"]) for turn in turns} == {("queued", "the operator, by the API")}
    assert await rung() == 4 * ["here"]
    dropped = (await api("DELETE", "/api/rescues/2", 202))["operation"]
    drop = await api("GET", f"/api/operations/{dropped}")
    assert (drop["kind"], drop["state"], drop["outcome"], drop["node"]) == ("drop", "queued", None, "here")
    assert drop["requested_by"] == "the operator, by the API"


async def test_each_node_with_files_is_asked_and_prunes_what_is_asked_of_all(api: Api, pool: Pool) -> None:
    await pool.execute(
        "insert into nodes (id, name, heartbeat_at)"
        " values ('new', 'new', now()), ('gone', 'gone', '-infinity'), ('away', 'away', '2026-01-01')"
    )
    await pool.execute("insert into orphans (node, path) values ('away', 'worktrees/octo/hello/stray')")
    asked = {"older_than": "30d", "repo": "octo/hello", "kind": "branch", "dry_run": True}
    answer = await api("POST", "/api/worktrees/prune", 202, json=asked)
    found = [await api("GET", f"/api/operations/{one}") for one in answer["operations"]]
    assert {one["node"]: one["waits_for"] for one in found} == {"away": "away", "here": None, "new": None}
    assert [one["details"] for one in found] == [asked] * 3
    assert {len(one["beside"]) for one in found} == {2}
    queued = await pool.fetch("select queue_name, task_name, lock from procrastinate_jobs order by id")
    assert [tuple(job) for job in queued] == [
        (f"node:{one}", "node", f"upkeep:{one}") for one in ("away", "here", "new")
    ]
    for wrong in ({"older_than": "soon"}, {"kind": "old"}, {"repo": "octo"}, {"dry_run": "maybe"}, {"state": "ready"}):
        await api("POST", "/api/worktrees/prune", 400, json=wrong)
    [one] = (await api("POST", "/api/worktrees/repair", 202, json={"worktree": 1}))["operations"]
    assert (await api("GET", f"/api/operations/{one}"))["node"] == "here"
    await api("POST", "/api/worktrees/repair", 404, json={"worktree": 999})


async def test_ended_sessions_of_a_repository_are_pruned_at_once(api: Api, pool: Pool) -> None:
    ended = await pool.fetchval("select count(*) from sessions where not active")
    assert ended > 0
    assert await api("POST", "/api/sessions/prune", json={"repo": "octo/other"}) == {"deleted": 0, "dry_run": False}
    asked = {"repo": "Octo/Hello", "dry_run": True}
    assert await api("POST", "/api/sessions/prune", json=asked) == {"deleted": ended, "dry_run": True}
    assert (await api("POST", "/api/sessions/prune", json={"older_than": "99999d"}))["deleted"] == 0
    assert (await api("POST", "/api/sessions/prune"))["deleted"] == ended
    assert await pool.fetchval("select count(*) from sessions where not active") == 0


async def test_an_orphan_is_removed_and_restored_by_its_id_on_its_node(api: Api, pool: Pool) -> None:
    orphan = await pool.fetchval(
        "insert into orphans select id, 'worktrees/octo/hello/stray' from nodes where name = 'here' returning id"
    )
    for method, path, kind in (("DELETE", "", "remove"), ("POST", "/restore", "restore")):
        asked = await api(method, f"/api/worktrees/{orphan}{path}", 202)
        found = await api("GET", f"/api/operations/{asked['operation']}")
        told = (asked["turn"], found["kind"], found["node"], found["details"])
        assert told == (None, kind, "here", {"path": "worktrees/octo/hello/stray"})
    for verb in ("reset", "touch"):
        await api("POST", f"/api/worktrees/{orphan}/{verb}", 409)


async def test_an_orphan_is_listed_among_the_worktrees(api: Api, pool: Pool) -> None:
    await pool.execute(
        "insert into orphans select id, 'worktrees/octo/hello/stray', now() from nodes where name = 'here'"
    )
    [orphan] = (await api("GET", "/api/worktrees?state=orphan"))["items"]
    assert (orphan["state"], orphan["codebase"]) == ("orphan", "octo/hello")
    whole = (await api("GET", "/api/worktrees"))["items"]
    assert [one["id"] for one in whole] == sorted({one["id"] for one in whole}, reverse=True), "no worktree has its id"
    assert orphan in whole
    assert orphan not in (await api("GET", "/api/worktrees?state=removed"))["items"]


async def test_a_touched_worktree_counts_as_used_now(api: Api, pool: Pool) -> None:
    assert await api("POST", "/api/worktrees/1/touch") == {"worktree": 1}
    assert await pool.fetchval("select now() - updated_at < interval '1 minute' from worktrees where id = 1")


async def test_a_turn_is_stopped_whether_it_waits_or_runs(api: Api, pool: Pool) -> None:
    await pool.execute(
        "insert into turns (conversation_id, state, requested_by_id, claim) values (3, 'running', 8, gen_random_uuid())"
    )
    await pool.execute(asks("turns where id = 4", "four", "bob", "issue", at="now() + interval '1 hour'"))
    assert await api("POST", "/api/turns/4/stop", 202) == {"turn": 4}
    running = await pool.fetchrow("select state, stop_requested_at is not null, stop_reason from turns where id = 4")
    assert tuple(running) == ("running", True, "Stopped by the operator.")
    assert await pool.fetchval("select state from turns where id = 3") == "queued", "the other one waits on"
    assert await api("POST", "/api/turns/3/stop", 202) == {"turn": 3}
    turn = await api("GET", "/api/turns/3")
    assert (turn["state"], turn["reason"]) == ("stopped", "Stopped by the operator.")
    assert "**Stopped** by the operator." in await pool.fetchval("select content from outbox where turn_id = 3")
    for again in (3, 4):
        await api("POST", f"/api/turns/{again}/stop", 409)


async def test_what_github_must_be_asked_about_becomes_a_delivery_for_a_worker(api: Api, pool: Pool) -> None:
    created = await api("POST", "/api/worktrees", 202, json={"conversation": "octo/hello#12"})
    retried = await api("POST", "/api/turns/2/retry", 202)
    for answer, action, conversation in ((created, "create", "octo/hello#12"), (retried, "retry", "octo/hello#4")):
        row = await api("GET", f"/api/deliveries/{answer['delivery']}")
        assert (row["event"], row["action"], row["state"]) == ("operator", action, "received")
        assert row["conversation"] == conversation
    assert await pool.fetchval("select count(*) from procrastinate_jobs where queue_name = 'decide'") == 2
    assert await api("POST", f"/api/deliveries/{FAILED}/replay", 202) == {"delivery": FAILED}
    await api("POST", f"/api/deliveries/{FAILED}/replay", 409)


async def test_a_database_that_hangs_is_a_503(api: Api, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as impatient:
        impatient.setattr("bot.operator.api.app.CALL_SECONDS", 0.2)
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute("lock table turns")
            await api("GET", "/api/turns", 503)
    await api("GET", "/api/turns")


async def test_listeners_hear_of_turns_steps_and_worktrees_until_the_process_stops(
    pool: Pool, database_url: str
) -> None:
    news = News(database_url)
    answer: Any = await news.stream(Request({"type": "http"}))
    events = answer.body_iterator
    plan = "update turns set plan = $1, latest_words = $2 where id = 3"
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await anext(events) == b": listening\n\n"
        await pool.execute("update turns set state = 'running', claim = gen_random_uuid() where id = 3")
        await pool.execute("insert into steps (turn_id, place, words) values (3, 1, E'<b>\\n\\ndata: x')")
        await pool.execute(plan, ["completed Read a.txt", "pending é " + "x" * 9000], "I read <b>.")
        await pool.execute(plan, ["completed Read a.txt", "pending é " + "x" * 9000], "I read <b>.")
        await pool.execute("update turns set state = 'done', claim = null, finished_at = now() where id = 3")
        await pool.execute("update worktrees set state = 'removing' where id = 1")
        await pool.execute("update worktrees set state = 'removed' where id = 1")
        heard = [(await anext(events)).decode().split("\n") for _ in range(6)]
    names = ["turn-started", "turn-step", "turn-progress", "turn-ended", "worktree-removing", "worktree-removed"]
    assert [lines[0] for lines in heard] == [f"event: {name}" for name in names]
    assert set(names) <= set(NAMES)
    assert all(len(lines) == 4 and lines[1].startswith("data: {") for lines in heard), "an event is two lines"
    told = [json.loads(lines[1].removeprefix("data: ")) for lines in heard]
    assert (told[0]["turn"], told[0]["conversation"], told[0]["state"]) == (3, "octo/world#9", "running")
    assert told[1]["words"] == "<b>\n\ndata: x"
    done, pending = told[2]["plan"]
    assert (told[2]["turn"], told[2]["latest_words"]) == (3, "I read <b>.")
    assert (done, pending["state"]) == ({"state": "completed", "text": "Read a.txt"}, "pending")
    await news.close()
    with pytest.raises(StopAsyncIteration):
        await anext(events)
    assert (await news.stream(Request({"type": "http"}))).status_code == 503


async def test_a_slow_listener_is_sent_away_and_harms_no_other(pool: Pool, database_url: str) -> None:
    news = News(database_url)
    slow: Any = await news.stream(Request({"type": "http"}))
    for _ in range(600):
        news._tell({"event": "turn-step", "news": {}, "repository": None})
    events = [event async for event in slow.body_iterator]
    assert len(events) <= 501
    await news.close()


async def test_more_news_than_can_be_read_send_the_listeners_away(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one is looked up, further ones wait, and not without a bound."""
    looked_up, goes_on, known = asyncio.Event(), asyncio.Event(), list[str]()

    async def look_up(connection: asyncpg.Connection, payload: str) -> dict[str, Any]:
        known.append(payload)
        looked_up.set()
        await goes_on.wait()
        await connection.execute("select 1")  # what was told before comes before its answer
        return {"event": "turn-step", "news": {}, "repository": None}

    monkeypatch.setattr(events, "_whole", look_up)
    news = News(database_url)
    answer: Any = await news.stream(Request({"type": "http"}))
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await anext(answer.body_iterator) == b": listening\n\n"
        await pool.execute("select pg_notify($1, 'first')", events.CHANNEL)
        await looked_up.wait()
        most = events.UNREAD_AT_MOST + 1
        await pool.execute("select pg_notify($1, n::text) from generate_series(1, $2) n", events.CHANNEL, most)
        goes_on.set()
        assert len([event async for event in answer.body_iterator]) <= 1
    assert known == ["first"]
    await news.close()


async def test_more_listeners_and_calls_than_there_are_places_are_refused_or_wait(
    pool: Pool, database_url: str
) -> None:
    news = News(database_url)
    answers = [await news.stream(Request({"type": "http"})) for _ in range(events.LISTENERS_AT_ONCE + 1)]
    assert [answer.status_code for answer in answers] == [200] * events.LISTENERS_AT_ONCE + [503]
    await news.close()

    calls = Calls(pool, Mock())
    async with calls.connection(), AsyncExitStack() as third:
        async with calls.connection():
            waits = asyncio.create_task(third.enter_async_context(calls.connection()))
            await asyncio.sleep(0)
            assert not waits.done()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await waits
