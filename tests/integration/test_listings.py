"""`threadtree … list` on a database with a history: the JSON for scripts and the tables for people."""

import asyncio
import json
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from typer.testing import CliRunner, Result

from bot.cli.calls import ROWS_FOR_PEOPLE
from bot.cli.main import app
from tests.support.node_id import record
from tests.support.past import A_PAST
from tests.support.postgres import execute

NAMES = ("worktrees", "sessions", "turns", "deliveries")


class Cli:
    """`threadtree` on one database, without a terminal."""

    def __init__(self, database_url: str, data_dir: Path) -> None:
        self.environment = {
            "DATABASE_URL": database_url,
            "DATA_DIR": str(data_dir),
            "NODE_NAME": "here",
            "AGENT_SANDBOX": "off",
            "COLUMNS": None,
            "LINES": None,
            "FORCE_COLOR": None,
        }

    async def __call__(self, *argv: str, status: int = 0) -> Result:
        result = await asyncio.to_thread(CliRunner().invoke, app, argv, env=self.environment)
        assert result.exit_code == status, (result.output, result.exception)
        return result

    async def json(self, *argv: str) -> list[dict[str, Any]]:
        rows = json.loads((await self(*argv, "--json")).stdout)
        assert isinstance(rows, list)
        return rows


@pytest.fixture
def cli(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    # The log belongs to the whole process, and later tests need it.
    monkeypatch.setattr("bot.cli.running.configure_logs", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    record(tmp_path, "here")
    return Cli(database_url, tmp_path)


@pytest.fixture
async def a_past(database_url: str) -> None:
    await execute(database_url, A_PAST)


async def test_an_empty_list_is_a_sentence_for_people_and_an_empty_array_for_scripts(cli: Cli) -> None:
    for name in NAMES:
        result = await cli(name, "list")
        assert (result.stdout, result.stderr.split()[:2]) == ("", ["No", name if name != "worktrees" else "worktrees;"])
        assert (await cli(name, "list", "--json")).stdout == "[]\n"


@pytest.mark.usefixtures("a_past")
async def test_worktrees_name_the_conversations_that_share_them(cli: Cli, tmp_path: Path) -> None:
    removed, shared = await cli.json("worktrees", "list", "--all", "--no-disk")
    assert shared == {
        "id": 1,
        "codebase": "octo/hello",
        "path": str(tmp_path / "worktrees/octo/hello/issue-1"),
        "branch": "threadtree/issue-1",
        "node": "here",
        "state": "missing",
        "conversations": ["octo/hello#1", "octo/hello#4"],
        "created_at": "2026-05-01T10:00:00Z",
        "updated_at": "2026-05-01T10:30:00Z",
        "bytes": None,
        "changed_files": None,
        "ahead": None,
        "behind": None,
        "rescues": [],
    }
    assert (removed["state"], removed["branch"], removed["conversations"]) == ("removed", None, [])


@pytest.mark.usefixtures("a_past")
async def test_a_directory_without_a_row_is_listed_as_an_orphan(cli: Cli, tmp_path: Path, database_url: str) -> None:
    await execute(
        database_url,
        "insert into orphans select id, 'worktrees/octo/hello/stray', now() from nodes where name = 'here'",
    )
    [orphan] = await cli.json("worktrees", "list", "--state", "orphan")
    assert (orphan["state"], orphan["codebase"]) == ("orphan", "octo/hello")
    assert orphan["path"] == str(tmp_path / "worktrees/octo/hello/stray")
    assert [one["state"] for one in await cli.json("worktrees", "list", "--no-disk")] == ["orphan", "missing"]
    assert await cli.json("worktrees", "list", "--state", "orphan", "--repo", "octo/other") == []


A_RESCUE = """
insert into rescues (worktree_id, ref, conversations, branch, files, commits, bytes, created_at, restored_at)
values (2, 'refs/threadtree/rescue/2/20260502T120000.000000Z', '{9}', null, 2, 1, 4096, '2026-05-02 12:00Z', null)
"""


@pytest.mark.usefixtures("a_past")
async def test_rescued_work_is_listed_with_its_age_and_size(cli: Cli, database_url: str) -> None:
    await execute(database_url, A_RESCUE)
    removed, _ = await cli.json("worktrees", "list", "--all")
    assert removed["rescues"] == await cli.json("rescues", "list")
    [rescue] = removed["rescues"]
    assert rescue == {
        "id": 1,
        "worktree": 2,
        "codebase": "octo/world",
        "conversations": ["octo/world#9"],
        "branch": None,
        "removal": None,
        "name": "refs/threadtree/rescue/2/20260502T120000.000000Z",
        "files": 2,
        "commits": 1,
        "bytes": 4096,
        "node": "here",
        "created_at": "2026-05-02T12:00:00Z",
        "expires_at": "2026-10-29T12:00:00Z",
        "restored_at": None,
    }
    table = (await cli("worktrees", "list")).stdout
    assert "threadtree rescues restore ID" in table
    assert "4.1 kB" in table


@pytest.mark.usefixtures("a_past")
async def test_the_disk_columns_cover_this_nodes_worktrees(cli: Cli, database_url: str, tmp_path: Path) -> None:
    here = tmp_path / "worktrees" / "octo" / "hello" / "issue-1"
    here.mkdir(parents=True)
    (here / "a.txt").write_text("x" * 100_000)
    await execute(database_url, f"update worktrees set path = '{here}' where id = 1")  # noqa: S608 -- a test's own
    assert [row["bytes"] is not None for row in await cli.json("worktrees", "list", "--all")] == [False, True]
    assert "kB" in (await cli("worktrees", "list")).stdout
    assert [row["bytes"] for row in await cli.json("worktrees", "list", "--no-disk")] == [None]


@pytest.mark.usefixtures("a_past")
async def test_sessions_say_whether_and_why_they_ended(cli: Cli) -> None:
    active, ended = await cli.json("sessions", "list")
    assert ended == {
        "id": 1,
        "conversation": "octo/hello#1",
        "agent": "custom",
        "assistant_session_id": "abc",
        "active": False,
        "created_at": "2026-05-01T10:00:00Z",
        "last_active_at": "2026-05-01T10:05:00Z",
        "ended_at": "2026-05-01T11:00:00Z",
        "end_reason": "reset-requested",
    }
    assert (active["active"], active["ended_at"], active["end_reason"]) == (True, None, None)


@pytest.mark.usefixtures("a_past")
async def test_turns_link_their_tracking_comment_once_it_is_posted(cli: Cli) -> None:
    queued, failed, done = await cli.json("turns", "list")
    assert done == {
        "id": 1,
        "conversation": "octo/hello#1",
        "verb": "work",
        "title": "one",
        "thread_title": "Login loops",
        "state": "done",
        "reason": None,
        "outcome": "changed",
        "check": {"state": "failed", "tests": 3, "failed": 2, "new": 1, "skipped": 0, "seconds": 1.5},
        "nothing_pushed": None,
        "asked": False,
        "waiting": None,
        "phase": None,
        "requested_by": "ada",
        "comment_url": "https://github.com/octo/hello/issues/1#c1",
        "agent": "custom",
        "model": "a-model",
        "pull_request": None,
        "cost_usd": 0.25,
        "tokens": 1200,
        "created_at": "2026-05-01T09:59:00Z",
        "started_at": "2026-05-01T10:00:00Z",
        "finished_at": "2026-05-01T10:05:00Z",
        "waits_for": "retry",
    }
    assert (failed["comment_url"], failed["conversation"]) == (None, "octo/hello#4")
    assert failed["pull_request"] == "octo/hello#4"
    assert failed["reason"] == "The agent ended without an answer. Ask again with /retry."
    assert (queued["conversation"], queued["started_at"], queued["finished_at"]) == ("octo/world#9", None, None)
    assert queued["waiting"] == "Queued. This starts in a moment."


@pytest.mark.usefixtures("a_past")
async def test_what_waits_for_a_person_is_listed(cli: Cli) -> None:
    first, failed = await cli.json("waiting")
    assert failed == {
        "turn": 2,
        "conversation": "octo/hello#4",
        "title": "two",
        "waits_for": "retry",
        "since": "2026-05-01T10:15:00Z",
        "requested_by": "ada",
        "url": "https://github.com/octo/hello/issues/4",
    }
    assert (first["turn"], first["url"]) == (1, "https://github.com/octo/hello/issues/1#c1"), "its check fails"
    assert await cli.json("waiting", "--repo", "octo/world") == []


@pytest.mark.usefixtures("a_past")
async def test_deliveries_show_their_result(cli: Cli) -> None:
    failed, ignored = await cli.json("deliveries", "list")
    assert failed == {
        "guid": "22222222-aaaa-4bbb-8ccc-dddddddddddd",
        "event": "issue_comment",
        "action": "created",
        "conversation": "octo/hello#1",
        "state": "failed",
        "received_at": "2026-05-01T10:00:00Z",
        "attempts": 3,
        "error": "GitHub answered 502",
    }
    assert (ignored["state"], ignored["action"], ignored["conversation"]) == ("ignored", None, None)


@pytest.mark.usefixtures("a_past")
async def test_without_a_terminal_each_row_of_a_table_is_one_line(cli: Cli) -> None:
    tables = {name: (await cli(name, "list")).stdout for name in NAMES}
    assert [len(tables[name].splitlines()) for name in ("sessions", "turns", "deliveries")] == [3, 4, 3], "a line a row"
    assert "5 min 0 s  $0.25  one" in tables["turns"]
    assert "22222222-aaaa-4bbb-8ccc-dddddddddddd  failed   2026-05-01 10:00" in tables["deliveries"]
    assert "GitHub answered 502" in " ".join(tables["deliveries"].split())
    assert "octo/hello#4" in tables["turns"]
    assert "ended   reset-requested" in tables["sessions"]
    assert " worktrees/octo/hello/issue-1" in tables["worktrees"]


@pytest.mark.usefixtures("a_past")
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("turns", "requests set ask = jsonb_set(ask, '{text}', to_jsonb('%s'::text))"),
        ("conversations", "conversations set title = '%s'"),
    ],
)
async def test_a_terminal_shows_the_beginning_of_a_long_text_in_one_line(
    cli: Cli, database_url: str, name: str, change: str
) -> None:
    await execute(database_url, f"update {change}" % "Set SameSite on the session cookie, so that Safari keeps it")
    cli.environment |= {"FORCE_COLOR": "1", "COLUMNS": "80"}
    lines = [line for line in (await cli(name, "list")).stdout.splitlines() if "octo/" in line]
    assert len(lines) == len(await cli.json(name, "list"))
    assert all("Set " in line and "…" in line and "keeps it" not in line for line in lines)


@pytest.mark.usefixtures("a_past")
async def test_removed_worktrees_are_listed_on_demand_only(cli: Cli) -> None:
    async def ids(*options: str) -> list[int]:
        return [row["id"] for row in await cli.json("worktrees", "list", *options)]

    assert await ids() == [1]
    assert await ids("--all") == [2, 1]
    assert await ids("--all", "--repo", "Octo/hello") == [1]
    assert await ids("--state", "removed") == await ids("--all", "--repo", "octo/world") == [2]
    assert "(detached)" in (await cli("worktrees", "list", "--all")).stdout
    refused = (await cli("worktrees", "list", "--state", "gone", status=2)).stderr
    assert "state cannot be 'gone'; give one of 'not-removed', 'reserved'" in refused


@pytest.mark.usefixtures("a_past")
async def test_a_live_worktree_without_its_directory_is_missing_and_paths_are_relative_to_the_data_directory(
    cli: Cli, database_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "worktrees" / "octo" / "hello" / "issue-1"
    await execute(database_url, f"update worktrees set path = '{path}' where id = 1")  # noqa: S608 -- a test's own
    [missing] = await cli.json("worktrees", "list", "--state", "missing")
    assert (missing["id"], missing["state"], missing["path"]) == (1, "missing", str(path))
    table = (await cli("worktrees", "list")).stdout
    assert [line.split()[-1] for line in table.splitlines()] == ["PATH", "worktrees/octo/hello/issue-1"]
    path.mkdir(parents=True)
    assert await cli.json("worktrees", "list", "--state", "missing") == []
    assert [row["state"] for row in await cli.json("worktrees", "list")] == ["ready"]


@pytest.mark.usefixtures("a_past")
async def test_a_limit_keeps_the_newest(cli: Cli) -> None:
    assert [row["id"] for row in await cli.json("turns", "list", "--limit", "2")] == [3, 2]
    assert "octo/hello#1" not in (await cli("turns", "list", "--limit", "2")).stdout
    for name in ("turns", "sessions", "deliveries", "conversations", "rescues"):
        assert (await cli(name, "list", "--repo", "octo/none")).stderr == "Nothing matches.\n"
    assert [row["id"] for row in await cli.json("turns", "list", "--state", "done")] == [1]


async def test_people_see_the_newest_and_that_there_are_more_while_scripts_get_all(cli: Cli, database_url: str) -> None:
    many = ROWS_FOR_PEOPLE + 5
    one = "insert into deliveries (guid, event, state) values ('guid-{}', 'ping', 'ignored')"
    await execute(database_url, *(one.format(number) for number in range(1, many + 1)))
    for_people = await cli("deliveries", "list")
    assert for_people.stdout.count("guid-") == ROWS_FOR_PEOPLE
    assert f"guid-{many} " in for_people.stdout
    assert "There are more" in for_people.stderr
    assert len(await cli.json("deliveries", "list")) == many


@pytest.mark.usefixtures("a_past")
async def test_a_replayed_delivery_is_received_again_with_one_new_job(cli: Cli, database_url: str) -> None:
    guid = "22222222-aaaa-4bbb-8ccc-dddddddddddd"
    assert "is handled again" in (await cli("deliveries", "replay", guid)).stdout
    assert "waiting to be handled already" in (await cli("deliveries", "replay", guid, status=1)).stderr
    received, _ = await cli.json("deliveries", "list")
    assert (received["state"], received["error"]) == ("received", None)
    connection = await asyncpg.connect(database_url)
    try:
        jobs = await connection.fetch("select queue_name, task_name, lock, args::text from procrastinate_jobs")
    finally:
        await connection.close()
    assert [tuple(job) for job in jobs] == [("decide", "decide", "github.com/1#1", f'{{"guid": "{guid}"}}')]


@pytest.mark.usefixtures("a_past")
async def test_a_delivery_that_cannot_be_replayed_gives_1_and_an_unknown_one_2(cli: Cli, database_url: str) -> None:
    ignored, failed = "11111111-aaaa-4bbb-8ccc-dddddddddddd", "22222222-aaaa-4bbb-8ccc-dddddddddddd"
    await execute(database_url, "update deliveries set body = null, state = 'done'")
    assert "There is no delivery nonesuch" in (await cli("deliveries", "replay", "nonesuch", status=2)).stderr
    for guid in (ignored, failed):
        assert "cannot be run" in (await cli("deliveries", "replay", guid, status=1)).stderr


async def test_what_the_api_tells_and_does_the_command_line_does_too(cli: Cli, a_past: None) -> None:
    [*rows] = await cli.json("conversations", "list")
    assert rows[0]["conversation"] in (await cli("conversations", "list", "--limit", "1")).stdout
    assert (await cli("conversations", "list", "--repo", "no/where")).stdout == ""
    assert [one["name"] for one in await cli.json("nodes", "list")]
    assert "HEARTBEAT (UTC)" in (await cli("nodes", "list")).stdout
    assert isinstance(await cli.json("costs", "--days", "366"), list)
    unended = next(one for one in await cli.json("turns", "list") if one["state"] == "queued")
    turn = str(unended["id"])
    assert json.loads((await cli("turns", "show", turn, "--json")).stdout)["id"] == unended["id"]
    shown = (await cli("turns", "show", turn)).stdout
    assert "state: queued" in shown
    assert "Request:" in shown
    await cli("turns", "stop", turn)
    assert "stopped" in (await cli("turns", "show", turn)).stdout
    await cli("turns", "retry", turn)
    for wrong in ("999999", "x", "-1"):
        refused = await cli("turns", "show", "--", wrong, status=2)
        assert "There is no" in refused.stderr or "There is nothing" in refused.stderr
