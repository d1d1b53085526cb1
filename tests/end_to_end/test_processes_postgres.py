"""An outage of Postgres: deliveries answered 202 are kept, the others must be sent again."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest_asyncio

from bot.postgres.embedded import embedded_postgres
from bot.store.migrate import migrate
from tests.support.patience import PATIENCE_SECONDS, eventually
from tests.support.postgres import execute
from tests.support.processes import Deployment, deployment, processes_with_arguments

ENGINE_WITHOUT_DATABASE = "ConnectorException"
"""Errors that the job engine logs while its database is away."""

CONNECTION_BREAKS_AT_THE_END_OF_A_JOB = """
create sequence ends;
create function break_once() returns trigger language plpgsql as $$
begin
    if nextval('ends') = 1 then
        perform pg_terminate_backend(pg_backend_pid());
    end if;
    return old;
end
$$;
create trigger break_once before delete on procrastinate_jobs for each row
when (old.task_name = 'decide') execute function break_once();
"""


@dataclass(frozen=True, slots=True)
class Server:
    """A Postgres for one test, which can be stopped."""

    dsn: str
    directory: Path

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Kill the server with kill -9; start it again when the block ends."""
        [supervisor] = processes_with_arguments("bot.postgres.supervisor", str(self.directory))
        os.kill(supervisor, signal.SIGSTOP)
        try:
            os.kill(self._postmaster, signal.SIGKILL)

            async def gone() -> bool:
                return not processes_with_arguments("-D", str(self.directory / "data"))

            await eventually(gone)
            yield
        finally:
            os.kill(supervisor, signal.SIGCONT)

    async def restart(self) -> None:
        """Shut the server down as its administrator does; its supervisor starts it again."""
        before = self._postmaster
        os.kill(before, signal.SIGINT)

        async def another() -> bool:
            return self._postmaster not in (0, before)

        await eventually(another)

    @property
    def _postmaster(self) -> int:
        try:
            return int((self.directory / "data" / "postmaster.pid").read_text().splitlines()[0])
        except (FileNotFoundError, IndexError):
            return 0


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """Start a server that keeps its commits when it is killed: only a power failure would lose them."""
    directory = tmp_path / "postgres"
    async with embedded_postgres(directory, None, {"fsync": "off"}) as dsn:
        await migrate(dsn)
        yield Server(dsn, directory)


async def test_a_turn_survives_an_outage_and_ends_once(tmp_path: Path, server: Server) -> None:
    async with deployment(tmp_path, server.dsn) as here:
        here.tolerated = ENGINE_WITHOUT_DATABASE
        serve = await here.start_listening()
        issue = await here.ask("append hello.txt: hello\nappend started: once\nwait go\nsay Here it is.")
        worktree = await here.at_work(issue)
        async with server.away():
            (worktree / "go").touch()
            await here.no_agents()
            await unready(serve_url := await serve.url())
        answer = await here.answered(issue, "Here it is.")
        await serve.ready()

        assert here.answers(issue) == [answer]
        assert (await here.repository.git.files("threadtree/issue-1"))["hello.txt"] == "hello"
        assert await here.value("select state || cut_offs from turns") == "done0"
        # A connection that broke meanwhile may be found out later: then it is said again.
        for event in ("database-away", "database-back"):
            await serve.said(event)
        started = next(json.loads(line) for line in serve.stderr.splitlines() if '"turn-started"' in line)
        assert (started["turn"], started["conversation"]) == (1, here.repository.full_name + f"#{issue.number}")
        await server.restart()
        await serve.ready()
        await here.ask("say And after a restart.", issue)
        await here.answered(issue, "And after a restart.")
        assert serve.is_running
        assert serve_url == await serve.url()


async def test_every_webhook_answered_202_during_outages_is_decided(tmp_path: Path, server: Server) -> None:
    async with deployment(tmp_path, server.dsn) as here:
        here.tolerated = ENGINE_WITHOUT_DATABASE
        serve = await here.start_listening()
        issue = await here.maria.open_issue(here.repository, "Talk")
        stream = asyncio.create_task(talk(here, issue.number))
        await answered_with(here, 202, at_least=10)
        async with server.away():
            await answered_with(here, 503, at_least=10)
        await serve.ready()
        before = len(here.github.deliveries)
        await answered_with(here, 202, at_least=1, since=before)
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
        await here.github.settled()

        assert {delivery.status_code for delivery in here.github.deliveries} == {202, 503}
        refused = [delivery for delivery in here.github.deliveries if delivery.status_code == 503]
        assert all(int(delivery.response_headers["retry-after"]) > 0 for delivery in refused)
        for delivery in refused:
            await here.github.redeliver(delivery.guid)
        accepted = [delivery.guid for delivery in here.github.deliveries if delivery.status_code == 202]
        assert {delivery.guid for delivery in refused} <= set(accepted)
        decided = "select count(*) from deliveries where guid = any($1::text[]) and state in ('done', 'ignored')"
        await here.until(f"select ({decided}) = $2", accepted, len(set(accepted)))
        assert serve.is_running


async def test_a_request_made_during_an_outage_runs_soon_after_it(tmp_path: Path, server: Server) -> None:
    async with deployment(tmp_path, server.dsn) as here:
        here.tolerated = ENGINE_WITHOUT_DATABASE
        here.repository.allow(here.github.bot, "admin")  # or it may not read the log of deliveries
        serve = await here.start_listening(RECOVER_INTERVAL_SECONDS="3600")
        issue = await here.ask("say First.")
        await here.answered(issue, "First.")
        async with server.away():
            await serve.said("database-away")
            await here.ask("say Missed.", issue)
            await answered_with(here, 503, at_least=1)
        await here.answered(issue, "Missed.")


async def test_a_connection_lost_at_the_end_of_a_job_does_not_keep_its_lock(tmp_path: Path, database_url: str) -> None:
    await execute(database_url, CONNECTION_BREAKS_AT_THE_END_OF_A_JOB)
    async with deployment(tmp_path, database_url) as here:
        here.tolerated = ENGINE_WITHOUT_DATABASE
        await here.start_listening()
        issue = await here.ask("say First.")
        await here.answered(issue, "First.")
        await here.ask("say Second.", issue)
        await here.answered(issue, "Second.")
        await here.until("select count(*) = 0 from procrastinate_jobs where status = 'doing'")


async def talk(here: Deployment, number: int) -> None:
    """Comment without a mention, each time the last comment was delivered."""
    thread = here.repository.threads[number]
    while True:
        await here.maria.comment(thread, "Just talking.")
        await here.github.settled()


async def answered_with(here: Deployment, status: int, *, at_least: int, since: int = 0) -> None:
    """Wait until this many deliveries, from that number on, got this status."""
    await here.github.wait_for(
        lambda: sum(delivery.status_code == status for delivery in here.github.deliveries[since:]) >= at_least
    )


async def unready(url: str) -> None:
    """Check that /readyz answers 503 and /healthz 200."""
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{url}/readyz", timeout=PATIENCE_SECONDS)).status_code == 503
        assert (await client.get(f"{url}/healthz", timeout=PATIENCE_SECONDS)).status_code == 200
