"""Migrate the schema with plain SQL files, each applied once and never changed afterwards."""

import asyncio
import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import asyncpg
import structlog

LOCK_KEY = int.from_bytes(hashlib.sha256(b"threadtree schema migrations").digest()[:8], signed=True)
LOCK_TIMEOUT_SECONDS = 600.0
TABLE_LOCK_SECONDS = 1.0
"""How long a migration waits for a table before it lets others have it: whoever asks later waits behind it."""
TABLE_PAUSE_SECONDS = 2.0
ENGINE = "000_procrastinate_"

TABLE_EXISTS = "select to_regclass('schema_migrations') is not null"
CREATE_TABLE = """
create table if not exists schema_migrations (
    name text primary key,
    sha256 text not null,
    applied_at timestamptz not null default now()
)
"""
SELECT_APPLIED = "select name, sha256 from schema_migrations order by name"
INSERT_APPLIED = "insert into schema_migrations (name, sha256) values ($1, $2)"

_log = structlog.get_logger()


class MigrationError(Exception):
    """The schema cannot be migrated; the message is for the operator."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file. It runs in a transaction."""

    name: str
    sql: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations_directory() -> Path:
    """Return the folder of migrations: beside this module in a wheel, at the top of the repository in a checkout."""
    packaged = Path(__file__).with_name("migrations")
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "migrations"


class NewerSchemaError(MigrationError):
    """The database has migrations that this version does not know."""


def load_migrations(
    directory: Path | None = None, applied: Collection[str] = (), engine: Path | None = None
) -> tuple[Migration, ...]:
    """Return the queue engine's schema, then every NNN_name.sql of the directory (default: the bot's own) in order.

    A database with `applied` migrations has a schema of the engine: of that, the changes since then, by the engine's
    own files. `engine` is the folder of those.
    """
    files = sorted((directory or migrations_directory()).glob("[0-9][0-9][0-9]_*.sql"), key=lambda file: file.name)
    ours = tuple(Migration(file.stem, file.read_text(encoding="utf-8")) for file in files)
    return (*_engine_migrations(applied, engine or _engine_directory()), *ours)


def _engine_directory() -> Path:
    engine = find_spec("procrastinate")  # found and not imported: the web process does without the engine
    if engine is None or engine.origin is None:
        raise MigrationError("The package procrastinate is not installed")
    return Path(engine.origin).with_name("sql")


def _engine_migrations(applied: Collection[str], folder: Path) -> Iterator[Migration]:
    """Yield the whole schema, named by the version of its newest change, then the changes after that version."""
    changes = sorted((folder / "migrations").glob("[0-9]*.sql"), key=lambda file: file.name)
    newest = changes[-1].name.partition("_")[0]
    known = (name.removeprefix(ENGINE) for name in applied if name.startswith(ENGINE))
    made_with = next((version for version in known if "_" not in version), newest)
    if made_with <= newest:
        yield Migration(f"{ENGINE}{made_with}", (folder / "schema.sql").read_text(encoding="utf-8"))
    for change in changes:
        if change.name.partition("_")[0] > made_with:
            yield Migration(f"{ENGINE}{change.stem}", change.read_text(encoding="utf-8"))


async def migrate(
    dsn: str, directory: Path | None = None, engine: Path | None = None, only: Collection[str] | None = None
) -> list[str]:
    """Apply what is missing and return its names. Any number of processes may do this at the same time.

    With `only`, an empty database gets the schema that had these migrations.

    Processes of the version before may run meanwhile: a migration adds, and leaves their statements working. Raises
    MigrationError for a changed or unknown applied migration, or one that fails: those before it stay.
    """
    connection = await asyncpg.connect(dsn)
    try:
        await _lock(connection)
        await connection.execute(CREATE_TABLE)
        missing = await _missing(connection, directory, engine)
        if only is not None:
            known = await asyncio.to_thread(load_migrations, directory, only, engine)
            missing = [migration for migration in known if migration.name in only]
        await _apply(connection, missing)
        return [migration.name for migration in missing]
    finally:
        await connection.close()  # gives the lock back


async def missing_migrations(connection: asyncpg.Connection, directory: Path | None = None) -> list[str]:
    """Return the names of the migrations that `migrate` would apply; change nothing.

    Raises NewerSchemaError for an unknown applied migration, MigrationError for a changed one.
    """
    if not await connection.fetchval(TABLE_EXISTS):
        return [migration.name for migration in await asyncio.to_thread(load_migrations, directory)]
    return [migration.name for migration in await _missing(connection, directory)]


async def _missing(
    connection: asyncpg.Connection, directory: Path | None, engine: Path | None = None
) -> list[Migration]:
    applied: dict[str, str] = {row["name"]: row["sha256"] for row in await connection.fetch(SELECT_APPLIED)}
    migrations = await asyncio.to_thread(load_migrations, directory, applied, engine)
    for migration in migrations:
        # The engine's files are its own: a new release may word them anew.
        is_changed = applied.get(migration.name, migration.sha256) != migration.sha256
        if is_changed and not migration.name.startswith(ENGINE):
            raise _of_development(migration.name)
    known = {migration.name for migration in migrations}
    ours = [migration.name for migration in migrations if not migration.name.startswith(ENGINE)]
    own = [name for name in applied if not name.startswith(ENGINE)]
    if own and ours and ours[0] not in own:
        raise _of_development(own[0])
    if unknown := [name for name in applied if name not in known]:
        raise NewerSchemaError(
            f"The database is of a newer version: it has {', '.join(unknown)}. Start that version, or restore a backup."
        )
    return [migration for migration in migrations if migration.name not in applied]


def _of_development(name: str) -> MigrationError:
    return MigrationError(
        f"The database was made by a development version: its {name} is not this version's. Start with an empty "
        "database: set DATABASE_URL to one, or move DATA_DIR/postgres away."
    )


async def _lock(connection: asyncpg.Connection) -> None:
    try:
        await connection.execute("select pg_advisory_lock($1)", LOCK_KEY, timeout=LOCK_TIMEOUT_SECONDS)
    except TimeoutError as error:
        raise MigrationError(f"Another process has been migrating for {LOCK_TIMEOUT_SECONDS:.0f} s") from error


async def _apply(connection: asyncpg.Connection, migrations: Sequence[Migration]) -> None:
    for migration in migrations:
        _log.debug("migration-starting", name=migration.name)
        try:
            await _apply_between_others(connection, migration)
        except asyncpg.PostgresError as error:
            raise MigrationError(f"Migration {migration.name} failed: {error}") from error
    if migrations:
        _log.info("migrations-applied", count=len(migrations), last=migrations[-1].name)


async def _apply_between_others(connection: asyncpg.Connection, migration: Migration) -> None:
    """Apply a migration in one transaction, again and again while another one uses its tables."""
    deadline = asyncio.get_running_loop().time() + LOCK_TIMEOUT_SECONDS
    while True:
        try:
            async with connection.transaction():
                await connection.execute(f"set local lock_timeout = '{TABLE_LOCK_SECONDS}s'")
                await connection.execute(migration.sql)
                await connection.execute(INSERT_APPLIED, migration.name, migration.sha256)
        except asyncpg.LockNotAvailableError:
            if asyncio.get_running_loop().time() > deadline:
                raise
            _log.info("migration-waits", name=migration.name)
            await asyncio.sleep(TABLE_PAUSE_SECONDS)
        else:
            return
