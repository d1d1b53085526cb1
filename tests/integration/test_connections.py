"""Connections that go back to the pool."""

import asyncio
import gc
import socket
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from bot.github.answers import BotIdentity
from bot.node.node_rows import OF_A_MACHINE
from bot.serve import process
from bot.serve.parts import Surroundings
from bot.settings import SERVE, load
from bot.store import engine
from bot.store.database import database
from bot.tasks import concurrently
from tests.support.patience import PATIENCE_SECONDS, eventually
from tests.support.silent import silent_way


async def test_one_silent_connection_tells_that_the_others_may_be_silent_too(database_url: str) -> None:
    async with silent_way(database_url) as way, database(way.dsn, size=3) as pool:
        used = [await pool.acquire() for _ in range(3)]
        for connection in used:
            await pool.release(connection)
        way.fall_silent()
        with pytest.raises(TimeoutError):
            await pool.execute("select 1", timeout=0.2)
        async with asyncio.timeout(PATIENCE_SECONDS):
            new = [await pool.acquire() for _ in range(3)]
            assert [await connection.fetchval("select 1") for connection in new] == [1] * 3
            for connection in new:
                await pool.release(connection)


async def test_a_transaction_whose_end_was_cancelled_is_rolled_back_without_an_error(database_url: str) -> None:
    async with database(database_url, size=1) as pool:
        async with pool.acquire() as connection:
            await connection.execute("begin")  # as a cancelled COMMIT leaves it: asyncpg knows of none
            await connection.execute("create table half_done ()")
        async with pool.acquire() as connection:
            assert not connection.is_in_transaction()
            assert await connection.fetchval("select to_regclass('half_done')") is None


async def test_a_lost_connection_that_is_replaced_is_closed_without_an_error(database_url: str) -> None:
    async with database(database_url, size=1) as pool:
        async with pool.acquire() as lost:
            pid = await lost.fetchval("select pg_backend_pid()")
            of_client = lost._con._transport.get_extra_info("socket")
        await pool.expire_connections()
        of_client.shutdown(socket.SHUT_WR)  # writing fails from now on
        async with pool.acquire() as new:
            assert await new.fetchval("select pg_backend_pid()") != pid
    gc.collect()  # a task whose error nobody asked for logs it now


async def test_a_worker_with_its_web_takes_at_most_twenty_connections(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def known(*_: object) -> BotIdentity:
        return BotIdentity("threadtree[bot]", 1, "threadtree")

    def full(**options: Any) -> Any:
        return open_pool(**options | {"min_size": options["max_size"]})

    def full_pool(dsn: str, **options: Any) -> Any:
        return create_pool(dsn, **options | {"min_size": options["max_size"]})

    open_pool, create_pool = engine._pool, asyncpg.create_pool
    monkeypatch.setattr(engine, "_pool", full)
    monkeypatch.setattr(asyncpg, "create_pool", full_pool)
    monkeypatch.setattr(process, "_identity", known)
    environ = {
        "GITHUB_TOKEN": "ghp_0123456789",
        "GITHUB_WEBHOOK_SECRET": "s" * 20,
        "ADMIN_TOKEN": "t" * 20,
        "PORT": "0",
        "AGENT": "custom",
        "AGENT_COMMAND": "/bin/true",
        "AGENT_SANDBOX": "off",
        "DATA_DIR": str(tmp_path),
        "NOTIFY_URL": "http://127.0.0.1:1/",
    }
    settings = load(environ, dotenv=None, needs=SERVE)
    address, stopping = asyncio.get_running_loop().create_future(), asyncio.Event()
    watching = await asyncpg.connect(database_url)
    pids = "select array_agg(pid) from pg_stat_activity where datname = current_database()"
    before = await watching.fetchval(pids)

    async def opened() -> int:
        return len(set(await watching.fetchval(pids)) - {*before})

    async def has_all_workers() -> bool:
        return bool(await watching.fetchval("select count(*) = 5 from procrastinate_workers"))

    async def has_all() -> bool:
        return await opened() >= OF_A_MACHINE

    running = process.run_both(settings, database_url, stopping, Surroundings(), address.set_result)
    async with concurrently(running) as both, asyncio.timeout(PATIENCE_SECONDS):
        headers = {"Authorization": f"Bearer {'t' * 20}"}
        async with (
            httpx.AsyncClient(base_url=await address, headers=headers, trust_env=False) as http,
            http.stream("GET", "/api/events") as events,
        ):
            assert events.status_code == 200
            await eventually(has_all_workers)
            await eventually(has_all)
            for _ in range(50):  # meanwhile any more would be opened
                assert await opened() == OF_A_MACHINE
        stopping.set()
        await both
    await watching.close()
