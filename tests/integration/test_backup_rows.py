"""The rows of a backup, in a database of this version or of one before."""

from pathlib import Path

import asyncpg

from bot.care.backup_rows import LEAP, load_rows, save_rows
from bot.store.migrate import load_migrations, migrate, missing_migrations
from tests.support.postgres import execute

CODEBASE = """
insert into codebases (platform, repository_id, owner, name, folder)
values ('github.com', 7, 'acme', 'shop', 'acme/shop');
insert into nodes (id, name, place) values ('one', 'one', 'there'), ('two', 'two', 'elsewhere');
insert into worktrees (platform, repository_id, node, path, start_kind, start_number)
values ('github.com', 7, 'one', 'worktrees/acme/shop/issue-1', 'issue', 1);
insert into turns default values;
"""


async def test_rows_of_a_version_before_are_brought_to_this_ones_schema(
    tmp_path: Path, empty_database_url: str, database_url: str
) -> None:
    *before, last = [migration.name for migration in load_migrations()]
    await migrate(empty_database_url, only=before)
    await execute(empty_database_url, CODEBASE)
    saved = await save_rows(empty_database_url, tmp_path)
    assert saved["migrations"] == before
    await execute(database_url, "drop schema public cascade; create schema public")

    await load_rows(database_url, tmp_path, saved, "one")

    connection = await asyncpg.connect(database_url)
    try:
        assert await missing_migrations(connection) == []
        assert await connection.fetchval("select name from schema_migrations order by name desc limit 1") == last
        places = await connection.fetch("select id, place from nodes order by id")
        assert [tuple(one) for one in places] == [("one", None), ("two", "elsewhere")]
        again = "insert into worktrees (platform, repository_id, node, path, start_kind, start_number) "
        again += "values ('github.com', 7, 'one', 'x', 'issue', 2) returning id, is_live"
        assert tuple(await connection.fetchrow(again)) == (2, True), "ids go on"
        turn = await connection.fetchval("insert into turns default values returning id")
        assert turn == LEAP + 2, "a comment on GitHub may have the number of a turn after the backup"
    finally:
        await connection.close()
