"""All rows of a database as files, and back: by COPY, which needs no program of Postgres."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import asyncpg

from bot.store.migrate import SELECT_APPLIED, MigrationError, load_migrations, migrate

_TABLES = """
-- Generated columns are made anew.
select c.relname as name, array_agg(a.attname order by a.attnum) as columns
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r' and a.attgenerated = ''
group by c.relname order by c.relname
"""
_SEQUENCES = """
select sequencename as name, last_value as value from pg_sequences
where schemaname = current_schema() and last_value is not null
"""
# Rows of tables that refer to each other come in any order; a key that is made again checks all of them.
_KEYS = """
select format('alter table %s drop constraint %I', conrelid::regclass, conname) as drop,
       format('alter table %s add constraint %I %s', conrelid::regclass, conname, pg_get_constraintdef(oid)) as add
from pg_constraint where contype = 'f' and connamespace = current_schema()::regnamespace
"""
# The numbers that comments and branches on GitHub have. Some were given after the backup: those are never given again.
_SHOWN = ("turns_id_seq", "outbox_id_seq")
LEAP = 1_000_000
_IS_EMPTY = "select not exists (select from pg_class where relnamespace = current_schema()::regnamespace)"


class Table(TypedDict):
    """A table, whose rows are in the file of its name."""

    name: str
    columns: list[str]


class Rows(TypedDict):
    """What was saved: the migrations that the schema had, the tables, the last value of each sequence."""

    migrations: list[str]
    tables: list[Table]
    sequences: dict[str, int]


async def save_rows(dsn: str, folder: Path) -> Rows:
    """Write the rows of all tables, as they are at one moment, into files of an empty folder."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            tables = [Table(name=one["name"], columns=one["columns"]) for one in await connection.fetch(_TABLES)]
            for table in tables:
                await connection.copy_from_table(table["name"], columns=table["columns"], output=folder / table["name"])
            return Rows(
                migrations=[one["name"] for one in await connection.fetch(SELECT_APPLIED)],
                tables=tables,
                sequences={one["name"]: one["value"] for one in await connection.fetch(_SEQUENCES)},
            )
    finally:
        await connection.close()


async def is_empty(dsn: str) -> bool:
    """Return whether the database has no table yet."""
    connection = await asyncpg.connect(dsn)
    try:
        return bool(await connection.fetchval(_IS_EMPTY))
    finally:
        await connection.close()


async def require_known(saved: Rows) -> None:
    """Raise MigrationError for the backup of a newer version."""
    known = {one.name for one in await asyncio.to_thread(load_migrations, None, saved["migrations"])}
    if unknown := [name for name in saved["migrations"] if name not in known]:
        raise MigrationError(f"The backup is of a newer version: it has {', '.join(unknown)}. Install that version.")


async def load_rows(dsn: str, folder: Path, saved: Rows, node: str | None) -> None:
    """Fill an empty database with the saved rows, then migrate it to this version's schema.

    `node` may run at another place from now on. Raises MigrationError.
    """
    await migrate(dsn, only=saved["migrations"])
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await _fill(connection, folder, saved)
            await connection.execute("update nodes set place = null where id = $1", node)
    finally:
        await connection.close()
    await migrate(dsn)


async def _fill(connection: asyncpg.Connection, folder: Path, saved: Rows) -> None:
    keys: Sequence[asyncpg.Record] = await connection.fetch(_KEYS)
    names = [_quoted(table["name"]) for table in saved["tables"]]
    await connection.execute("".join(f"{key['drop']};" for key in keys))
    await connection.execute(f"truncate {', '.join(names)}")
    for name, table in zip(names, saved["tables"], strict=True):
        # They tell others, or make what was saved too.
        await connection.execute(f"alter table {name} disable trigger user")
        await connection.copy_to_table(table["name"], columns=table["columns"], source=folder / table["name"])
        await connection.execute(f"alter table {name} enable trigger user")
    await connection.execute("".join(f"{key['add']};" for key in keys))
    last = [(name, value + LEAP * (name in _SHOWN)) for name, value in saved["sequences"].items()]
    await connection.executemany("select setval(quote_ident($1)::regclass, $2)", last)


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))
