"""Migrations on a real database: applied once, in order, by the first process."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import procrastinate
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from bot.store.migrate import (
    MigrationError,
    NewerSchemaError,
    load_migrations,
    migrate,
    missing_migrations,
)
from tests.support.patience import PATIENCE_SECONDS
from tests.support.postgres import execute

WAITING_FOR_A_TABLE = """
select exists (select from pg_locks where locktype = 'relation' and not granted)
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
    with capture_logs() as logs:
        assert await migrate(empty_database_url, directory) == [engine, "001_animals", "002_plants"]
    told = [(line["event"], line["count"]) for line in logs if line["log_level"] != "debug"]
    assert told == [("migrations-applied", 3)], "one line, however many there are"
    assert await connection.fetchval("select count(*) from procrastinate_jobs") == 0
    assert await connection.fetchval("select name from animals") == "cat"
    assert await migrate(empty_database_url, directory) == []


def test_the_files_are_numbered_without_a_gap() -> None:
    ours = [migration.name for migration in load_migrations() if not migration.name.startswith("000_")]
    assert [name[:3] for name in ours] == [f"{number:03}" for number in range(1, len(ours) + 1)]


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


async def test_a_database_of_a_development_version_is_named_with_the_next_step_and_nothing_runs(
    empty_database_url: str, connection: asyncpg.Connection, directory: Path
) -> None:
    await migrate(empty_database_url, directory)
    write(directory, "001_animals", "create table animals (name text not null);")
    (directory / "002_plants.sql").unlink()
    write(directory, "002_more", "create table more ();")
    with pytest.raises(MigrationError, match="development version: its 001_animals is not"):
        await missing_migrations(connection, directory)
    with pytest.raises(MigrationError, match="development version: its 001_animals is not"):
        await migrate(empty_database_url, directory)
    assert await connection.fetchval("select to_regclass('more')") is None


async def test_a_database_whose_pages_had_other_names_is_of_a_development_version(
    empty_database_url: str, directory: Path
) -> None:
    await migrate(empty_database_url, directory)
    (directory / "001_animals.sql").rename(directory / "001_beasts.sql")
    with pytest.raises(MigrationError, match="development version: its 001_animals is not"):
        await migrate(empty_database_url, directory)


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


async def test_a_new_version_of_the_engine_is_applied_in_place_by_its_own_files(
    empty_database_url: str, connection: asyncpg.Connection, directory: Path, engine: str, tmp_path: Path
) -> None:
    await migrate(empty_database_url, directory)
    later = Path(shutil.copytree(Path(procrastinate.__file__).with_name("sql"), tmp_path / "sql"))
    schema, changes = later / "schema.sql", later / "migrations"
    column = "alter table procrastinate_jobs add column {} text;\n"
    schema.write_text(f"{schema.read_text()}\n{column.format('color')}{column.format('size')}")
    write(changes, "99.01.00_01_pre_color", column.format("color"))
    write(changes, "99.02.00_50_post_size", column.format("size"))
    upgrade = ["000_procrastinate_99.01.00_01_pre_color", "000_procrastinate_99.02.00_50_post_size"]

    assert await migrate(empty_database_url, directory, later) == upgrade
    assert await migrate(empty_database_url, directory, later) == []
    await connection.fetch("select color, size from procrastinate_jobs")
    with pytest.raises(NewerSchemaError, match=upgrade[0]):
        await migrate(empty_database_url, directory)

    await connection.execute("drop schema public cascade; create schema public")
    assert (await migrate(empty_database_url, directory, later))[0] == "000_procrastinate_99.02.00"
    assert await migrate(empty_database_url, directory, later) == []
    await connection.fetch("select color, size from procrastinate_jobs")
    with pytest.raises(NewerSchemaError, match="000_procrastinate_99"):
        await migrate(empty_database_url, directory)


async def test_others_use_a_table_while_a_migration_waits_for_it(
    empty_database_url: str,
    connection: asyncpg.Connection,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await migrate(empty_database_url, directory)
    write(directory, "003_age", "alter table animals add column age integer;")
    monkeypatch.setattr("bot.store.migrate.TABLE_PAUSE_SECONDS", 0.01)
    other = await asyncpg.connect(empty_database_url)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            async with connection.transaction():
                await connection.fetch("select from animals")
                migrating = asyncio.create_task(migrate(empty_database_url, directory))
                while not await other.fetchval(WAITING_FOR_A_TABLE):  # noqa: ASYNC110 - Postgres has no event
                    await asyncio.sleep(0.01)
                assert await other.fetchval("select count(*) from animals") == 1
                assert not migrating.done()
            assert await migrating == ["003_age"]
    finally:
        await other.close()


async def test_every_test_has_a_migrated_database_of_its_own(database_url: str) -> None:
    await execute(database_url, "create table left_behind ()")
    connection = await asyncpg.connect(database_url)
    try:
        assert await missing_migrations(connection) == []
    finally:
        await connection.close()
