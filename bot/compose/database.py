"""The database that the settings name, and the error of a process that cannot start."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bot.postgres.embedded import embedded_postgres
from bot.settings import Settings


class CannotStartError(Exception):
    """The process cannot start with these settings; the message names the next step."""


@asynccontextmanager
async def database_url(settings: Settings) -> AsyncIterator[str]:
    """The address of the database: the one that is set, or the embedded Postgres, started if it does not run yet."""
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    async with embedded_postgres(settings.with_data_dir().data_dir / "postgres", settings.postgres_bin_dir) as dsn:
        yield dsn
