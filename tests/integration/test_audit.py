"""The record of who did what: written with each change, and read by operators."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from starlette.applications import Starlette
from typer.testing import CliRunner

from bot.care import upkeep_rows as upkeep
from bot.cli.calls import unix_user
from bot.cli.main import app as commands
from bot.operator.api import audit_rows as audit
from bot.operator.api.app import api_routes
from bot.operator.api.calls import ApiContext, Calls
from bot.operator.api.events import News
from bot.store.database import Pool, database
from tests.support.past import A_PAST
from tests.support.postgres import execute

TOKEN = "a-token-of-the-tests-long-enough"
FAILED = "22222222-aaaa-4bbb-8ccc-dddddddddddd"
MORE = """
insert into rescues (worktree_id, ref, conversations) values (1, 'refs/threadtree/rescue/1/1', '{1}');
insert into orphans (node, path) values ('here', 'worktrees/octo/hello/stray');
update turns set worktree_id = 2 where id = 3;
"""


@pytest_asyncio.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    await execute(database_url, A_PAST, MORE)
    async with database(database_url, size=4) as opened:
        yield opened


@pytest_asyncio.fixture
async def api(pool: Pool, database_url: str, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    kept = (timedelta(days=180), timedelta(hours=1))
    ctx = ApiContext("github.com", "https://github.com", tmp_path, *kept, lambda: datetime.now(UTC))
    routes = api_routes(Calls(pool, ctx), TOKEN, News(database_url))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    transport = httpx.ASGITransport(Starlette(routes=routes), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://threadtree.test/api", headers=headers) as client:
        yield client


async def entries(api: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    answer = await api.get("/audit", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def test_every_change_is_recorded_with_its_person_target_and_outcome(api: httpx.AsyncClient, pool: Pool) -> None:
    orphan = await pool.fetchval("select id from orphans")
    for method, path, body in (
        ("POST", "/worktrees", {"conversation": "octo/hello#1"}),
        ("POST", "/worktrees/1/reset", {}),
        ("POST", "/worktrees/1/touch", {}),
        ("POST", "/worktrees/2/restore", {}),
        ("DELETE", f"/worktrees/{orphan}", {}),
        ("POST", "/rescues/1/restore", {}),
        ("DELETE", "/rescues/1", {}),
        ("POST", "/worktrees/prune", {"older_than": "30d", "repo": "octo/hello"}),
        ("POST", "/sessions/prune", {}),
        ("POST", "/turns/3/stop", {}),
        ("POST", "/turns/2/retry", {}),
        ("POST", f"/deliveries/{FAILED}/replay", {}),
    ):
        answer = await api.request(method, path, json=body)
        assert answer.status_code in (200, 202), (path, answer.text)
    ended = "update turns set state = 'done', answer = 'It was reset.', finished_at = now() where id = 4"
    assert await pool.execute(ended) == "UPDATE 1"
    found = await entries(api)
    assert {(one["person"], one["channel"]) for one in found} == {("admin-token", "API")}
    assert [(one["action"], one["target"], one["codebase"], one["outcome"]) for one in reversed(found)] == [
        *(("create", "octo/hello#1", "octo/hello", "received"),),
        *(("reset", "worktree 1", "octo/hello", "It was reset."), ("touch", "worktree 1", "octo/hello", "done")),
        *(("restore", "worktree 2", "octo/world", "queued"),),
        *(("remove", f"worktree {orphan}", "octo/hello", "queued"),),
        *(("restore", "rescue 1", "octo/hello", "queued"), ("drop", "rescue 1", "octo/hello", "queued")),
        *(("prune", "worktrees", "octo/hello", "queued"), ("prune", "sessions", None, "Deleted 1 ended session.")),
        *(("stop", "turn 3", "octo/world", "done"),),
        *(("retry", "turn 2", "octo/hello", "received"), ("replay", f"delivery {FAILED}", "octo/hello", "received")),
    ]
    assert found[4]["details"] == {"older_than": "30d", "repo": "octo/hello"}


async def test_what_is_refused_or_only_shown_is_not_recorded(api: httpx.AsyncClient) -> None:
    for path, status in (("/worktrees/99/reset", 404), ("/turns/1/stop", 409), ("/worktrees/2/reset", 409)):
        assert (await api.post(path, json={})).status_code == status
    assert (await api.post("/worktrees/prune", json={"dry_run": True})).status_code == 202
    assert await entries(api) == []


async def test_a_change_that_cannot_be_recorded_does_not_happen(
    api: httpx.AsyncClient, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("the record is broken")

    monkeypatch.setattr(audit, "record", broken)
    for method, path in (("POST", "/worktrees/1/reset"), ("POST", "/turns/3/stop"), ("POST", "/turns/2/retry")):
        assert (await api.request(method, path, json={})).status_code == 500
    assert await pool.fetchval("select count(*) from turns") == 3
    assert await pool.fetchval("select state from turns where id = 3") == "queued"
    assert await pool.fetchval("select count(*) from deliveries") == 2


async def test_the_record_is_filtered_paged_and_kept_as_long_as_the_history(api: httpx.AsyncClient, pool: Pool) -> None:
    for person, codebase, days in (("olga", "octo/hello", 0), ("Ada", "octo/hello", 2), ("olga", None, 400)):
        await audit.record(pool, audit.Entry(person, "dashboard", "reset", "x", codebase, outcome="done"))
        last = "(select max(id) from audit)"
        await pool.execute(f"update audit set at = now() - {days} * interval '1 day' where id = {last}")  # noqa: S608
    today = datetime.now(UTC).date()
    for query, ids in (
        ({}, [3, 2, 1]),
        ({"person": "OLGA"}, [3, 1]),
        ({"repo": "Octo/Hello"}, [2, 1]),
        ({"since": str(today - timedelta(days=5))}, [2, 1]),
        ({"since": f"{today - timedelta(days=1)}T00:00:00Z", "person": "ada"}, []),
    ):
        assert [one["id"] for one in await entries(api, **query)] == ids, query
    first = (await api.get("/audit", params={"limit": 2})).json()
    assert [one["id"] for one in await entries(api, after=first["next"])] == [1]
    assert "a day or a time" in (await api.get("/audit", params={"since": "soon"})).json()["error"]
    async with pool.acquire() as connection:
        await upkeep.delete_old(connection, timedelta(days=30), timedelta(days=30), timedelta(days=365))
    assert [one["id"] for one in await entries(api)] == [2, 1]


async def test_the_command_line_records_its_user_and_lists_the_record(
    api: httpx.AsyncClient, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.cli.running.configure_logs", lambda *_: None)  # it belongs to the whole process
    monkeypatch.chdir(tmp_path)

    async def run(*argv: str) -> str:
        environment = {"DATABASE_URL": database_url, "DATA_DIR": str(tmp_path)}
        result = await asyncio.to_thread(CliRunner().invoke, commands, argv, env=environment)
        assert result.exit_code == 0, result.output
        return result.stdout

    await run("turns", "stop", "3")
    await api.post("/worktrees/1/touch", json={})
    [touched, stopped] = json.loads(await run("audit", "list", "--json"))
    assert (stopped["person"], stopped["channel"], stopped["action"]) == (unix_user(), "command line", "stop")
    assert json.loads(await run("audit", "list", "--json", "--person", "admin-token", "--since", "2026-01-01")) == [
        touched
    ]
    assert "turn 3" in await run("audit", "list", "--repo", "octo/world")
