"""A worker that is told to stop while it starts stops at once, whatever it waits for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import procrastinate
import pytest
from procrastinate.exceptions import ConnectorException

from bot.github.answers import BotIdentity
from bot.redaction import Redactor
from bot.serve import parts, process, worker
from bot.serve.parts import Surroundings
from bot.settings import WORKER, load
from bot.store.engine import Handlers, engine
from tests.support.patience import PATIENCE_SECONDS


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
    environ = {
        "GITHUB_TOKEN": "ghp_0123456789",
        "AGENT": "custom",
        "AGENT_COMMAND": "/bin/true",
        "AGENT_SANDBOX": "off",
        "DATA_DIR": str(tmp_path),
    }
    settings = load(environ, dotenv=None, needs=WORKER)

    async with asyncio.timeout(PATIENCE_SECONDS):
        await process.run_worker(settings, database_url, Redactor(), stopping, Surroundings())

    assert left.is_set()


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
            raise ConnectorException
        return self

    monkeypatch.setattr(procrastinate.App, "open_async", fails_once)
    async with worker.open_engine(app):
        assert await app.job_manager.list_queues_async() == []
