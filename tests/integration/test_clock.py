"""The clock of a worker is the database's."""

import time
from datetime import UTC, datetime, timedelta, tzinfo

import asyncpg
import pytest
from structlog.testing import capture_logs

from bot.serve import clock
from bot.serve.clock import DatabaseClock

HOUR = timedelta(hours=1)


class HourAhead(datetime):
    """The clock of a machine that is an hour ahead."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "HourAhead":
        return super().now(tz) + HOUR


async def test_a_wrong_clock_of_the_machine_does_not_matter_and_is_logged_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "datetime", HourAhead)
    connection = await asyncpg.connect(database_url)
    try:
        now = DatabaseClock()
        assert now() - datetime.now(UTC) > HOUR / 2
        with capture_logs() as logged:
            await now.look(connection)
            await now.look(connection)
        assert abs(now() - datetime.now(UTC)) < HOUR / 2
        assert [line["event"] for line in logged] == ["clock-is-wrong"]
    finally:
        await connection.close()


async def test_time_passes_between_two_looks_at_the_database(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        now = DatabaseClock()
        await now.look(connection)
    finally:
        await connection.close()
    before = now()
    later = time.monotonic() + HOUR.total_seconds()
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert now() - before >= HOUR
