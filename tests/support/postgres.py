"""Fixtures: one embedded Postgres for the run, migrated once, and a fresh copy of that database for every test."""

import fcntl
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
import pytest_asyncio

from bot.postgres.embedded import embedded_postgres
from bot.postgres.files import Files, is_locked
from bot.store.migrate import migrate

# Nothing here needs to survive a power failure.
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
TEMPLATE = "threadtree_template"


def with_database(server_url: str, name: str) -> str:
    """The same server's URL with another database."""
    return urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))


async def execute(dsn: str, *statements: str) -> None:
    """Run each statement by itself on a connection of its own."""
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The URL of the run's own server, which is gone after the run."""
    directory: Path = tmp_path_factory.mktemp("postgres")
    async with embedded_postgres(directory, None, FAST) as url:
        yield url
    assert not is_locked(Files(directory).server_lock, fcntl.LOCK_EX)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def migrated_template(postgres_server: str) -> str:
    """The name of a database with the schema of this version and no rows."""
    await execute(postgres_server, f"create database {TEMPLATE}")
    await migrate(with_database(postgres_server, TEMPLATE))
    return TEMPLATE


@pytest_asyncio.fixture
async def database_url(postgres_server: str, migrated_template: str) -> AsyncIterator[str]:
    """The URL of a migrated database of this test alone."""
    name = f"test_{secrets.token_hex(6)}"
    await execute(postgres_server, f"create database {name} template {migrated_template}")
    yield with_database(postgres_server, name)
    await execute(postgres_server, f"drop database {name} with (force)")


@pytest_asyncio.fixture
async def empty_database_url(postgres_server: str) -> AsyncIterator[str]:
    """The URL of a database without any tables, of this test alone."""
    name = f"empty_{secrets.token_hex(6)}"
    await execute(postgres_server, f"create database {name}")
    yield with_database(postgres_server, name)
    await execute(postgres_server, f"drop database {name} with (force)")
