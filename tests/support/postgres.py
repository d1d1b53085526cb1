"""Fixtures: one embedded Postgres for the run, and a migrated database without rows for every test."""

import fcntl
import os
import secrets
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psycopg
import pytest
import pytest_asyncio

from bot.locks import is_locked
from bot.postgres.embedded import embedded_postgres
from bot.postgres.files import Files
from bot.store.migrate import migrate

FAST = {
    # No data needs to survive a power failure.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    # Half of what Postgres does for a test is planning: else five times for each statement of each new connection.
    "plan_cache_mode": "force_generic_plan",
}
TEMPLATE = "threadtree_template"
FIRST_OID_OF_A_DATABASE = 16384
"""Below are Postgres' own types, the same in every server. https://www.postgresql.org/docs/current/system-catalog-initial-data.html"""
# Deleted rows still cost time; after this many tests a new database is faster.
MAX_USES = 50
CLEANING = """
-- A database that a test has changed beyond its rows is not used again.
create schema test_support;
grant usage on schema test_support to public;
create table test_support.changes (command text not null);
grant insert on test_support.changes to public;
create table test_support.migrations as table schema_migrations;
create function test_support.note_change() returns event_trigger language plpgsql as $$
begin
    insert into test_support.changes values (tg_tag);
end $$;

create function test_support.clean() returns boolean language plpgsql as $$
declare
    name regclass;
begin
    perform pg_terminate_backend(pid, 10000) from pg_stat_activity
    where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid();
    if exists (select from test_support.changes) or exists (
        -- Someone has analyzed it: it would be planned for in another way.
        select from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r' and reltuples > 0
    ) then
        return false;
    end if;
    set local lock_timeout = '10s';
    set local session_replication_role = replica;
    for name in select oid from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r' loop
        execute format('delete from %s', name);
    end loop;
    insert into schema_migrations table test_support.migrations;
    perform setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false)
    from pg_sequences where schemaname = 'public';
    return true;
end $$;

create event trigger note_change on ddl_command_end execute function test_support.note_change();
"""


def remember_types() -> None:
    """Let asyncpg ask once what a type of Postgres' own is, such as `bigint[]`.

    Each connection asks for the ones it meets, which takes three times as long as to connect.
    """
    original, known = asyncpg.Connection._introspect_types, {}

    async def introspect(connection: asyncpg.Connection, oids: Collection[int], timeout: float) -> object:
        key = frozenset(oids)
        if max(key) >= FIRST_OID_OF_A_DATABASE:
            return await original(connection, oids, timeout)
        if key not in known:
            known[key] = await original(connection, oids, timeout)
        return known[key]

    asyncpg.Connection._introspect_types = introspect


def with_database(server_url: str, name: str) -> str:
    """Return the same server's URL with another database."""
    return urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))


async def execute(dsn: str, *statements: str) -> None:
    """Run each statement separately on one connection."""
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Yield the URL of the run's server, which is removed after the run.

    `POSTGRES_BIN_DIR=/usr/lib/postgresql/15/bin make test` plays the tests on another version than the wheel's.
    """
    remember_types()
    directory: Path = tmp_path_factory.mktemp("postgres")
    chosen = os.environ.get("POSTGRES_BIN_DIR")
    # A test connects many times, and each proof of a password takes milliseconds.
    trusting = directory / "trusting.conf"
    trusting.write_text("local all all trust\n")
    trusting.chmod(0o644)
    async with embedded_postgres(
        directory, Path(chosen) if chosen else None, FAST | {"hba_file": str(trusting)}
    ) as url:
        yield url
    assert not is_locked(Files(directory).server_lock, fcntl.LOCK_EX)


@dataclass(slots=True)
class Databases:
    """Databases with the current schema and no rows. A returned database is cleaned and reused."""

    server_url: str
    free: list[tuple[str, int, psycopg.Connection[Any]]] = field(default_factory=list)
    """Names of databases, how many tests have used each, and a connection that cleans it.

    The connection stays: a new one takes six times as long to clean, since it knows none of the tables.
    """

    @asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """Yield a database that no other test uses meanwhile."""
        name, uses, cleaner = self.free.pop() if self.free else await self._created()
        yield with_database(self.server_url, name)
        if uses + 1 < MAX_USES and is_cleaned(cleaner):
            self.free.append((name, uses + 1, cleaner))
        else:
            cleaner.close()
            await execute(self.server_url, f"drop database if exists {name} with (force)")

    def close(self) -> None:
        """Close the connections."""
        for *_, cleaner in self.free:
            cleaner.close()

    async def _created(self) -> tuple[str, int, psycopg.Connection[Any]]:
        name = f"test_{secrets.token_hex(6)}"
        await execute(self.server_url, f"create database {name} template {TEMPLATE} strategy file_copy")
        return name, 0, psycopg.connect(with_database(self.server_url, name), autocommit=True)


def is_cleaned(cleaner: psycopg.Connection[Any]) -> bool:
    """Remove all rows; return False if the database is then not as good as new."""
    try:
        return cleaner.execute("select test_support.clean()").fetchone() == (True,)
    except psycopg.Error:  # The test has dropped or replaced it, has ended its connections, or a lock is held.
        return False


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def databases(postgres_server: str) -> AsyncIterator[Databases]:
    """Yield the migrated databases of this run."""
    await execute(postgres_server, f"create database {TEMPLATE}")
    template = with_database(postgres_server, TEMPLATE)
    await migrate(template)
    await execute(template, CLEANING)
    databases = Databases(postgres_server)
    yield databases
    databases.close()


@pytest_asyncio.fixture
async def database_url(databases: Databases) -> AsyncIterator[str]:
    """Yield the URL of a migrated database of this test."""
    async with databases.database() as url:
        yield url


@pytest_asyncio.fixture
async def empty_database_url(postgres_server: str) -> AsyncIterator[str]:
    """Yield the URL of a database without tables, of this test."""
    name = f"empty_{secrets.token_hex(6)}"
    await execute(postgres_server, f"create database {name} strategy file_copy")
    yield with_database(postgres_server, name)
    await execute(postgres_server, f"drop database {name} with (force)")
