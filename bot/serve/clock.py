"""The database's clock: all processes of an installation agree on the time, whatever their own clocks say."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import structlog

from bot.store.database import Connection

WRONG_BY = timedelta(minutes=1)
"""From this difference on, the clock of a machine is worth a warning."""
_log = structlog.get_logger()


class DatabaseClock:
    """The time of the database, carried on between two looks by a clock that nobody sets."""

    def __init__(self) -> None:
        self._read_at = time.monotonic()
        self._time = datetime.now(UTC)
        self._is_wrong = False

    def __call__(self) -> datetime:
        """Return the time now; until the first look that of this machine."""
        return self._time + timedelta(seconds=time.monotonic() - self._read_at)

    async def look(self, connection: Connection) -> None:
        """Read the time from the database. Log once where this machine's clock differs from it by over a minute."""
        self._time = await connection.fetchval("select clock_timestamp()")
        self._read_at = time.monotonic()
        ahead = datetime.now(UTC) - self._time
        if (is_wrong := abs(ahead) > WRONG_BY) and not self._is_wrong:
            _log.warning("clock-is-wrong", ahead_of_database_seconds=round(ahead.total_seconds()))
        self._is_wrong = is_wrong


async def set_clock(connection: Connection, clock: Callable[[], datetime]) -> None:
    """Set a clock that follows the database's; tests bring others."""
    if isinstance(clock, DatabaseClock):
        await clock.look(connection)
