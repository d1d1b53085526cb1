"""Migrate the schema with plain SQL files, each applied once and never changed afterwards."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import asyncpg
import structlog

LOCK_KEY = int.from_bytes(hashlib.sha256(b"threadtree schema migrations").digest()[:8], signed=True)
LOCK_TIMEOUT_SECONDS = 600.0
LOCK_POLL_SECONDS = 0.1
NO_TRANSACTION = "-- no transaction"

TABLE_EXISTS = "select to_regclass('schema_migrations') is not null"
CREATE_TABLE = """
create table if not exists schema_migrations (
    name text primary key,
    sha256 text not null,
    applied_at timestamptz not null default now()
)
"""
TRY_LOCK = "select pg_try_advisory_lock($1)"
SELECT_APPLIED = "select name, sha256 from schema_migrations order by name"
INSERT_APPLIED = "insert into schema_migrations (name, sha256) values ($1, $2)"

_log = structlog.get_logger()


class MigrationError(Exception):
    """The schema cannot be migrated; the message is for the operator."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file. It runs in a transaction, unless its first line says otherwise; then it is a single statement."""

    name: str
    sql: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def in_transaction(self) -> bool:
        return self.sql.partition("\n")[0].strip() != NO_TRANSACTION


def migrations_directory() -> Path:
    """Return the folder of migrations: beside this module in a wheel, at the top of the repository in a checkout."""
    packaged = Path(__file__).with_name("migrations")
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "migrations"


def load_migrations(directory: Path | None = None) -> tuple[Migration, ...]:
    """Return the queue engine's schema, then every NNN_name.sql of the directory (default: the bot's own) in order."""
    files = sorted((directory or migrations_directory()).glob("[0-9][0-9][0-9]_*.sql"), key=lambda file: file.name)
    ours = tuple(Migration(file.stem, file.read_text(encoding="utf-8")) for file in files)
    return (_engine_schema(), *ours)


def _engine_schema() -> Migration:
    """Return the queue engine's schema, named by the newest of its own migrations."""
    engine = find_spec("procrastinate")  # found and not imported: the web process does without the engine
    if engine is None or engine.origin is None:
        raise MigrationError("The package procrastinate is not installed")
    folder = Path(engine.origin).with_name("sql")
    newest = max(change.name.partition("_")[0] for change in (folder / "migrations").glob("[0-9]*.sql"))
    return Migration(f"000_procrastinate_{newest}", (folder / "schema.sql").read_text(encoding="utf-8"))


async def migrate(dsn: str, directory: Path | None = None) -> list[str]:
    """Apply what is missing and return its names. Any number of processes may do this at the same time.

    Raises MigrationError for a changed or unknown applied migration, or one that fails: those before it stay.
    """
    migrations = await asyncio.to_thread(load_migrations, directory)
    connection = await asyncpg.connect(dsn)
    try:
        await _lock(connection)
        await connection.execute(CREATE_TABLE)
        missing = await _missing(connection, migrations)
        await _apply(connection, missing)
        return [migration.name for migration in missing]
    finally:
        await connection.close()  # gives the lock back


async def missing_migrations(connection: asyncpg.Connection, directory: Path | None = None) -> list[str]:
    """Return the names of the migrations that `migrate` would apply; change nothing.

    Raises MigrationError for a changed or unknown applied migration.
    """
    migrations = await asyncio.to_thread(load_migrations, directory)
    if not await connection.fetchval(TABLE_EXISTS):
        return [migration.name for migration in migrations]
    return [migration.name for migration in await _missing(connection, migrations)]


async def _missing(connection: asyncpg.Connection, migrations: Sequence[Migration]) -> list[Migration]:
    applied: dict[str, str] = {row["name"]: row["sha256"] for row in await connection.fetch(SELECT_APPLIED)}
    for migration in migrations:
        if applied.get(migration.name, migration.sha256) != migration.sha256:
            raise MigrationError(
                f"Migration {migration.name} was changed after it had been applied: restore it, add a new one"
            )
    known = {migration.name for migration in migrations}
    if unknown := [name for name in applied if name not in known]:
        raise MigrationError(f"The database is of a newer version: it has {', '.join(unknown)}")
    return [migration for migration in migrations if migration.name not in applied]


async def _lock(connection: asyncpg.Connection) -> None:
    """Poll for the session's lock.

    A query that waits for it is a transaction, and the holder's `create index concurrently` waits for those in turn.
    """
    try:
        async with asyncio.timeout(LOCK_TIMEOUT_SECONDS):
            while not await connection.fetchval(TRY_LOCK, LOCK_KEY):  # noqa: ASYNC110 - another process has it
                await asyncio.sleep(LOCK_POLL_SECONDS)
    except TimeoutError as error:
        raise MigrationError(f"Another process has been migrating for {LOCK_TIMEOUT_SECONDS:.0f} s") from error


async def _apply(connection: asyncpg.Connection, migrations: Sequence[Migration]) -> None:
    for migration in migrations:
        _log.info("migration-starting", name=migration.name)
        try:
            if migration.in_transaction:
                async with connection.transaction():
                    await connection.execute(migration.sql)
                    await connection.execute(INSERT_APPLIED, migration.name, migration.sha256)
            else:
                # A prepared statement is a single one by the protocol; several would be one transaction after all.
                await connection.fetch(migration.sql)
                await connection.execute(INSERT_APPLIED, migration.name, migration.sha256)
        except asyncpg.PostgresError as error:
            raise MigrationError(f"Migration {migration.name} failed: {error}") from error
