"""What a worker hears of stop requests and doorbells, and what it does where it may have missed some."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bot.serve.worker import STOP_ASKED, listen
from bot.store import jobs
from bot.store.database import Pool
from bot.store.jobs import ring_for_work
from bot.turn.runner import Runner
from tests.support.patience import PATIENCE_SECONDS
from tests.support.turn_rows import held

END_LISTENERS = """
select pg_terminate_backend(pid) from pg_stat_activity where query ilike 'listen%' and datname = current_database()
"""


class Told(Runner):
    """A runner that only notes what it is told."""

    def __init__(self) -> None:
        self._told: asyncio.Queue[str] = asyncio.Queue()

    def ring(self) -> None:
        self._told.put_nowait("work")

    def ring_for_turn(self) -> None:
        self._told.put_nowait("turn")

    def stop_asked(self, turn_id: int) -> None:
        self._told.put_nowait(f"stop {turn_id}")

    async def next(self) -> str:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._told.get()


@asynccontextmanager
async def listening(dsn: str) -> AsyncIterator[Told]:
    runner, stopping = Told(), asyncio.Event()
    running = asyncio.create_task(listen(dsn, "here", runner, stopping))
    try:
        yield runner
    finally:
        stopping.set()
        await asyncio.wait_for(running, PATIENCE_SECONDS)


async def test_a_worker_hears_its_nodes_doorbells_when_they_are_committed(database_url: str, pool: Pool) -> None:
    async with listening(database_url) as told:
        assert await told.next() == "work", "for what rang before it listened"
        async with held(pool) as ringing, pool.acquire() as other:
            await ringing.execute("select pg_notify($1, 'here')", jobs.TURN_WAITS)
            await ring_for_work(other, "there")
            await ring_for_work(other, "here")
            assert await told.next() == "work"
        assert await told.next() == "turn"
        await pool.execute("select pg_notify($1, '7')", STOP_ASKED)
        assert await told.next() == "stop 7"


@pytest.mark.expects_errors
async def test_a_worker_whose_connection_was_lost_looks_for_work(database_url: str, pool: Pool) -> None:
    async with listening(database_url) as told:
        assert await told.next() == "work"
        await pool.execute(END_LISTENERS)
        assert await told.next() == "work"
        async with held(pool) as ringing:
            await ringing.execute("select pg_notify($1, 'here')", jobs.TURN_WAITS)
        assert await told.next() == "turn"
