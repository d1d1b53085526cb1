"""Connections that go back to the pool."""

import gc
import socket

from bot.store.database import database


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
