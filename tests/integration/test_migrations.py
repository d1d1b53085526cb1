"""Migrations on a real database: applied once, in order, by the first process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from bot.store.migrate import (
    LOCK_KEY,
    MigrationError,
    load_migrations,
    migrate,
    missing_migrations,
)
from tests.support.patience import PATIENCE_SECONDS
from tests.support.postgres import execute

OTHERS_THAT_ASK_FOR_A_LOCK = """
select count(*) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and query like '%advisory_lock(%'
"""


@pytest_asyncio.fixture
async def connection(empty_database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(empty_database_url)
    yield connection
    await connection.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write(tmp_path, "001_animals", "create table animals (name text);\ninsert into animals values ('cat');")
    write(tmp_path, "002_plants", "create table plants (name text);")
    return tmp_path


@pytest.fixture
def engine() -> str:
    return load_migrations(Path("/nonexistent"))[0].name


def write(directory: Path, name: str, sql: str) -> None:
    (directory / f"{name}.sql").write_text(sql)


async def test_an_empty_database_gets_the_engine_then_our_files_in_order(
    empty_database_url: str, connection: asyncpg.Connection, directory: Path, engine: str
) -> None:
    assert await migrate(empty_database_url, directory) == [engine, "001_animals", "002_plants"]
    assert await connection.fetchval("select count(*) from procrastinate_jobs") == 0
    assert await connection.fetchval("select name from animals") == "cat"
    assert await migrate(empty_database_url, directory) == []


async def test_only_the_new_file_is_applied_to_a_database_in_use(
    empty_database_url: str, connection: asyncpg.Connection, directory: Path
) -> None:
    await migrate(empty_database_url, directory)
    write(directory, "003_dogs", "insert into animals values ('dog');")
    assert await missing_migrations(connection, directory) == ["003_dogs"]
    assert await migrate(empty_database_url, directory) == ["003_dogs"]
    assert await connection.fetchval("select count(*) from animals") == 2
    assert await missing_migrations(connection, directory) == []


async def test_an_empty_database_is_behind_and_looking_changes_nothing(
    connection: asyncpg.Connection, directory: Path, engine: str
) -> None:
    assert await missing_migrations(connection, directory) == [engine, "001_animals", "002_plants"]
    assert await connection.fetchval("select count(*) from pg_tables where schemaname = 'public'") == 0


async def test_a_file_changed_after_it_was_applied_is_named_and_nothing_runs(
    empty_database_url: str, connection: asyncpg.Connection, directory: Path
) -> None:
    await migrate(empty_database_url, directory)
    write(directory, "001_animals", "create table animals (name text not null);")
    write(directory, "003_more", "create table more ();")
    with pytest.raises(MigrationError, match="001_animals was changed"):
        await missing_migrations(connection, directory)
    with pytest.raises(MigrationError, match="001_animals was changed"):
        await migrate(empty_database_url, directory)
    assert await connection.fetchval("select to_regclass('more')") is None


async def test_a_database_of_a_newer_bot_is_left_alone(
    empty_database_url: str, connection: asyncpg.Connection, directory: Path
) -> None:
    await migrate(empty_database_url, directory)
    (directory / "002_plants.sql").unlink()
    with pytest.raises(MigrationError, match="newer version: it has 002_plants"):
        await missing_migrations(connection, directory)
    with pytest.raises(MigrationError, match="newer version: it has 002_plants"):
        await migrate(empty_database_url, directory)


async def test_a_failing_file_leaves_nothing_of_itself_and_keeps_those_before_it(
    empty_database_url: str, connection: asyncpg.Connection, directory: Path
) -> None:
    write(directory, "002_plants", "create table plants (); select 1/0;")
    with pytest.raises(MigrationError, match="002_plants failed: division by zero"):
        await migrate(empty_database_url, directory)
    assert await connection.fetchval("select to_regclass('plants')") is None
    assert await missing_migrations(connection, directory) == ["002_plants"]


async def test_a_file_can_build_an_index_concurrently_while_others_wait_for_the_lock(
    empty_database_url: str, connection: asyncpg.Connection, directory: Path, engine: str
) -> None:
    write(directory, "003_index", "-- no transaction\ncreate index concurrently animals_name on animals (name);")
    async with asyncio.timeout(PATIENCE_SECONDS):
        applied = await asyncio.gather(*(migrate(empty_database_url, directory) for _ in range(4)))
    assert sorted(applied, key=len) == [[], [], [], [engine, "001_animals", "002_plants", "003_index"]]
    assert await connection.fetchval("select indisvalid from pg_index where indexrelid = 'animals_name'::regclass")


async def test_a_file_without_transaction_holds_one_statement(
    empty_database_url: str, connection: asyncpg.Connection, directory: Path
) -> None:
    write(directory, "003_two", "-- no transaction\ncreate table one (); create table two ();")
    with pytest.raises(MigrationError, match="003_two failed: cannot insert multiple commands"):
        await migrate(empty_database_url, directory)
    assert await connection.fetchval("select to_regclass('one')") is None


async def test_a_process_that_waits_for_the_lock_has_no_open_transaction(
    empty_database_url: str, connection: asyncpg.Connection, directory: Path
) -> None:
    await connection.execute("create table busy (name text)")
    await connection.execute(f"select pg_advisory_lock({LOCK_KEY})")
    waiting = asyncio.create_task(migrate(empty_database_url, directory))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await connection.fetchval(OTHERS_THAT_ASK_FOR_A_LOCK):  # noqa: ASYNC110 - Postgres has no event
            await asyncio.sleep(0.01)
        # The index build waits for every older transaction.
        await connection.execute("create index concurrently busy_name on busy (name)")
        await connection.execute(f"select pg_advisory_unlock({LOCK_KEY})")
        assert await waiting != []


async def test_every_test_has_a_migrated_database_of_its_own(database_url: str) -> None:
    await execute(database_url, "create table left_behind ()")
    connection = await asyncpg.connect(database_url)
    try:
        assert await missing_migrations(connection) == []
    finally:
        await connection.close()
