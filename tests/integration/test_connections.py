"""Connections that go back to the pool."""

import asyncio
import gc
import socket

import pytest

from bot.store.database import database
from tests.support.patience import PATIENCE_SECONDS
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
