"""One database for many histories, with a clock that tests move."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from bot import failpoints
from bot.store.database import Pool
from bot.tree.git.runner import Git
from tests.support.histories.fakes import as_asked, manual_agent

NODE = "here"
CLOCK = """
-- now() as the database's own, put forward.
create schema clock;
create table clock.hand (ahead interval not null);
insert into clock.hand values (interval '0');
create function clock.now() returns timestamptz stable language sql
    as 'select pg_catalog.now() + ahead from clock.hand'
"""
DEFAULTS = """
select format('alter table %I alter column %I set default clock.now()', table_name, column_name) as statement
from information_schema.columns where table_schema = 'public' and column_default like '%now()%'
"""


before_step: list[Callable[[], None]] = []
"""Called before each git command and each use of the database: two steps of the bot are never closer."""


def _steps(original: Callable[..., Any]) -> Callable[..., Any]:
    def step(*args: Any, **options: Any) -> Any:
        for listener in before_step:
            listener()
        return original(*args, **options)

    return step


@asynccontextmanager
async def history_database(dsn: str) -> AsyncIterator[Pool]:
    """Yield a database for one history after another; agents are manual, and no failpoint is set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bot.turn.asking.driver_for", manual_agent)
        patch.setattr("bot.turn.preparing.confirm", as_asked)
        patch.setattr(failpoints, "listener", None)
        patch.setattr(Git, "run", _steps(Git.run))
        patch.setattr(asyncpg.pool.Pool, "acquire", _steps(asyncpg.pool.Pool.acquire))
        path = {"search_path": "clock, public, pg_catalog"}
        async with asyncpg.create_pool(dsn, min_size=2, max_size=6, server_settings=path) as pool:
            await pool.execute(CLOCK)
            for column in await pool.fetch(DEFAULTS):
                await pool.execute(column["statement"])
            yield pool


async def empty(pool: Pool) -> None:
    """Delete all rows except the node's, and reset the clock."""
    tables = [
        row["tablename"]
        for row in await pool.fetch("select tablename from pg_tables where schemaname = 'public'")
        if not row["tablename"].startswith("procrastinate_") and "migration" not in row["tablename"]
    ]
    await pool.execute(f"truncate {', '.join(tables)} restart identity cascade")
    await pool.execute("delete from procrastinate_jobs")
    await pool.execute("update clock.hand set ahead = interval '0'")
    await pool.execute("insert into nodes (id) values ($1)", NODE)
