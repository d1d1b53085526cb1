"""The command line for an operator: each command is a process with an environment from scratch."""

import asyncio
import json
from pathlib import Path

import orjson

from bot.store.migrate import migrations_directory
from tests.support.postgres import execute
from tests.support.processes import BotProcess, deployment

CANNOT_START = {
    "a token that GitHub refuses": ({"GITHUB_TOKEN": "ghp_wrong"}, "GITHUB_TOKEN"),
    "a database that is not there": ({"DATABASE_URL": "postgresql://nobody@/no_such"}, "DATABASE_URL"),
    "a port that is taken": ({"PORT": "{port}"}, "PORT"),
    "another address than GitHub's API": (
        {"GITHUB_API_URL": "http://127.0.0.1:{port}/elsewhere"},
        "GITHUB_API_URL",
    ),
}

NEXT_VERSION = """
-- What a migration may do: each table and view gets one more column.
do $$
declare
    relation record;
begin
    for relation in select tablename from pg_tables where schemaname = 'public' and tablename !~ '^procrastinate' loop
        execute format('alter table %I add column next_version text', relation.tablename);
    end loop;
    for relation in select viewname, rtrim(definition, ';') as query from pg_views where schemaname = 'public' loop
        execute format('create or replace view %I as select o.*, 1 as next_version from (%s) o',
                       relation.viewname, relation.query);
    end loop;
    insert into schema_migrations (name, sha256) values ('999_next', '');
end $$
"""


def complaints(process: BotProcess) -> list[str]:
    """Return the output for the operator, without the log."""
    return [line for line in process.lines if not line.startswith("{")]


async def test_each_missing_or_contradictory_setting_is_named_in_one_line(tmp_path: Path, database_url: str) -> None:
    async with deployment(tmp_path, database_url) as here:
        nothing, wrong = await asyncio.gather(
            here.run("serve", GITHUB_WEBHOOK_SECRET="", GITHUB_TOKEN="", AGENT_COMMAND=""),
            here.run("serve", GITHUB_APP_ID="1", AGENT_COMMAND="/no/such/agent --acp", NODE_NAME="ä"),
        )
        assert await nothing.ended() == await wrong.ended() == 2
        for process, names in (
            (nothing, ["GITHUB_WEBHOOK_SECRET", "GITHUB_TOKEN", "AGENT_COMMAND"]),
            (wrong, ["GITHUB_TOKEN", "NODE_NAME", "AGENT_COMMAND"]),
        ):
            assert [line.split()[:2] for line in process.lines] == [["threadtree:", name] for name in names]


async def test_a_failed_start_of_serve_is_one_line_that_names_the_setting(tmp_path: Path, database_url: str) -> None:
    async with deployment(tmp_path, database_url) as here:
        for settings, name in CANNOT_START.values():
            given = {key: value.format(port=here.github.port) for key, value in settings.items()}
            process = await here.run("serve", **given)
            assert await process.ended() == 1
            [line] = complaints(process)
            assert line.startswith("threadtree: ")
            assert name in line
            assert "ghp_wrong" not in process.stderr


async def test_web_and_worker_refuse_an_old_schema_until_it_is_migrated(
    tmp_path: Path, empty_database_url: str
) -> None:
    async with deployment(tmp_path, empty_database_url) as here:
        web, worker = await asyncio.gather(here.run("web"), here.run("worker"))
        for process in (web, worker):
            assert await process.ended() == 1
            [line] = complaints(process)
            assert "`threadtree migrate`" in line

        first = await here.run("migrate")
        again = await here.run("migrate")
        assert (await first.ended(), await again.ended()) == (0, 0)
        assert b"applied 001_threads" in first.stdout
        assert again.stdout == b""

        web = await here.start_listening("web")
        worker = await here.start("worker")
        await web.ready()
        issue = await here.ask("write hello.txt: hello\nsay Here it is.")
        await here.answered(issue, "Here it is.")
        assert await here.repository.git.files("threadtree/issue-1") == {
            "README.md": "# shop",
            "hello.txt": "hello",
        }

        # A newer version migrates under them: they go on, and none of this version starts again.
        await execute(here.dsn, NEXT_VERSION)
        await here.ask("say Still here.", issue)
        await here.answered(issue, "Still here.")
        await web.ready()
        for late in await asyncio.gather(*map(here.run, ("web", "worker", "serve"))):
            assert await late.ended() == 1
            [line] = complaints(late)
            assert "of a newer version: it has 999_next" in line
        assert web.is_running
        assert worker.is_running


async def test_two_serves_started_at_once_migrate_once_and_share_the_work(
    tmp_path: Path, empty_database_url: str
) -> None:
    async with deployment(tmp_path, empty_database_url) as here:
        first, second = await asyncio.gather(here.start("serve"), here.start_listening())
        await asyncio.gather(first.ready(), second.ready())
        applied = [event["count"] for process in (first, second) for event in process.events("migrations-applied")]
        assert applied == [len(list(migrations_directory().glob("*.sql"))) + 1], "the engine's own, and ours"
        issue = await here.ask("say Only once.")
        await here.answered(issue, "Only once.")
        assert len(here.answers(issue)) == 1


async def test_receive_stores_a_file_that_a_worker_handles(tmp_path: Path, database_url: str) -> None:
    async with deployment(tmp_path, database_url) as here:
        here.github.set_webhook("http://127.0.0.1:9/webhooks/github", "unused")
        here.repository.allow(here.github.bot, "admin")
        issue = await here.ask("say From a file.")
        await here.github.settled()
        payload = tmp_path / "payload.json"
        payload.write_bytes(here.github.deliveries[-1].request_body)
        broken = tmp_path / "broken.json"
        broken.write_text("{")

        await here.start("worker")
        stored, refused, missing = await asyncio.gather(
            here.run("receive", "--event", "issue_comment", str(payload)),
            here.run("receive", "--event", "issue_comment", str(broken)),
            here.run("receive", "--event", "issue_comment", str(tmp_path / "no.json")),
        )
        assert await stored.ended() == 0
        guid = stored.stdout.decode().strip()
        await here.answered(issue, "From a file.")
        assert await here.value("select state from deliveries where guid = $1", guid) == "done"

        # What nobody listened to is fetched from the log; the same comment from the file is not done twice.
        await here.ask("say Missed.", issue)
        await here.github.settled()
        [source] = json.loads((await here.run("deliveries", "recover", "--json")).stdout)
        assert (source["source"], source["way"]) == ("acme/shop", "deliveries")
        assert {one.guid for one in here.github.deliveries if b"say Missed." in one.request_body} <= {*source["guids"]}
        await here.answered(issue, "Missed.")
        here.repository.allow(here.github.bot, "write")
        told = await here.run("deliveries", "recover")
        assert told.stdout == b"acme/shop: 0 events recovered\n"
        assert "may not read the repository's webhooks" in told.stderr
        assert [len([one for one in here.answers(issue) if words in one.body]) for words in ("From", "Missed")] == [
            1,
            1,
        ]
        for process, name in ((refused, "broken.json"), (missing, "no.json")):
            assert await process.ended() == 2
            assert process.stdout == b""
            assert name in "".join(complaints(process)).replace("\n", "")
            assert "Traceback" not in process.stderr


async def test_without_database_url_a_command_and_serve_start_their_own_postgres_and_stop_it(tmp_path: Path) -> None:
    async with deployment(tmp_path, None, interpreters=True) as here:
        none = await here.run("turns", "list", "--json")
        assert (await none.ended(), orjson.loads(none.stdout)) == (0, [])
        assert postgres_processes(here.data_dir) == []

        serve = await here.start_listening()
        issue = await here.ask("say First.")
        await here.answered(issue, "First.")
        listed = await here.run("worktrees", "list", "--json")
        assert await listed.ended() == 0
        [worktree] = orjson.loads(listed.stdout)
        assert worktree["conversations"] == ["acme/shop#1"]

        await serve.kill()
        again = await here.start_listening()
        await here.ask("say Second.", issue)
        await here.answered(issue, "Second.")
        assert await again.terminate() == 0
        assert postgres_processes(here.data_dir) == []


def postgres_processes(data_dir: Path) -> list[int]:
    """Return the servers and supervisors of the embedded Postgres below this directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(data_dir) in entry.read_text():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found
