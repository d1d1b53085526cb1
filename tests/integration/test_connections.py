"""Connections that go back to the pool."""

from bot.store.database import database


async def test_a_transaction_whose_end_was_cancelled_is_rolled_back_without_an_error(database_url: str) -> None:
    async with database(database_url, size=1) as pool:
        async with pool.acquire() as connection:
            await connection.execute("begin")  # as a cancelled COMMIT leaves it: asyncpg knows of none
            await connection.execute("create table half_done ()")
        async with pool.acquire() as connection:
            assert not connection.is_in_transaction()
            assert await connection.fetchval("select to_regclass('half_done')") is None
