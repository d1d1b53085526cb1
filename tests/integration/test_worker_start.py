"""A worker that is told to stop while it starts stops at once, whatever it waits for; no outage ends a start."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import procrastinate
import psycopg_pool
import pytest

from bot.github.answers import BotIdentity
from bot.node import transactions
from bot.redaction import Redactor
from bot.serve import parts, process, worker
from bot.serve.parts import Surroundings
from bot.settings import SERVE, WORKER, load
from bot.store.engine import Handlers, engine
from bot.tasks import concurrently
from tests.support.patience import PATIENCE_SECONDS, eventually

SERVED = {"GITHUB_WEBHOOK_SECRET": "a secret of a webhook", "HOST": "127.0.0.1", "PORT": "0", "BOT_NAME": "threadtree"}


def environ_in(data_dir: Path) -> dict[str, str]:
    """Return the settings of a worker."""
    return {
        "GITHUB_TOKEN": "ghp_0123456789",
        "AGENT": "custom",
        "AGENT_COMMAND": "/bin/true",
        "AGENT_SANDBOX": "off",
        "DATA_DIR": str(data_dir),
    }


@pytest.mark.parametrize(
    "step", ["database", "set_clock", "open_sandbox", "identify", "_identity", "persist", "registered", "open_engine"]
)
async def test_a_worker_stops_at_any_step_of_its_start(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    stopping, left = asyncio.Event(), asyncio.Event()

    async def waits(*_: object) -> None:
        stopping.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    @asynccontextmanager
    async def never_open(*_: object, **__: object) -> AsyncIterator[None]:
        await waits()
        yield

    async def known(*_: object) -> BotIdentity:
        return BotIdentity("threadtree[bot]", 1, "threadtree")

    monkeypatch.setattr(process, "_identity", known)
    module = process if hasattr(process, step) else parts
    monkeypatch.setattr(module, step, never_open if step in ("database", "registered", "open_engine") else waits)
    settings = load(environ_in(tmp_path), dotenv=None, needs=WORKER)

    async with asyncio.timeout(PATIENCE_SECONDS):
        await process.run_worker(settings, database_url, Redactor(), stopping, Surroundings())

    assert left.is_set()


async def test_web_and_worker_start_through_an_outage_at_each_statement(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching, failed = await asyncpg.connect(database_url), set[str]()
    address, stopping = asyncio.get_running_loop().create_future(), asyncio.Event()

    def breaking(method: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def breaks_once(self: asyncpg.Connection, query: str, *args: object, **options: object) -> object:
            if self is not watching and query not in failed:
                failed.add(query)
                raise asyncpg.ConnectionDoesNotExistError
            return await method(self, query, *args, **options)

        return breaks_once

    async def known(*_: object) -> BotIdentity:
        return BotIdentity("threadtree[bot]", 1, "threadtree")

    for name in ("execute", "fetch", "fetchrow", "fetchval"):
        monkeypatch.setattr(asyncpg.Connection, name, breaking(getattr(asyncpg.Connection, name)))
    monkeypatch.setattr(process, "_identity", known)
    monkeypatch.setattr(transactions, "_PAUSE_SECONDS", 0.01)
    settings = load(environ_in(tmp_path) | SERVED, dotenv=None, needs=SERVE)

    async def work() -> bool:
        return bool(await watching.fetchval("select count(*) = 4 from procrastinate_workers"))

    running = process.run_both(settings, database_url, stopping, Surroundings(), address.set_result)
    async with concurrently(running) as both:
        started = asyncio.ensure_future(eventually(work))
        await asyncio.wait({started, both}, return_when=asyncio.FIRST_COMPLETED)
        stopping.set()
        await both
        await started
    assert address.done()
    await watching.close()


async def test_the_engine_works_after_its_first_opening_failed(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none(_: int) -> None:
        pass

    app = engine(database_url, Handlers(none))
    opens, failed = procrastinate.App.open_async, asyncio.Event()

    async def fails_once(self: procrastinate.App) -> procrastinate.App:
        await opens(self)
        if not failed.is_set():
            failed.set()
            assert isinstance(self.connector, procrastinate.PsycopgConnector)
            await self.connector.pool.close()  # as the pool does where it got no connection in time
            raise psycopg_pool.PoolTimeout
        return self

    monkeypatch.setattr(procrastinate.App, "open_async", fails_once)
    async with worker.open_engine(app):
        assert await app.job_manager.list_queues_async() == []
