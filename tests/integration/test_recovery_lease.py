"""One process at a time compares the inbox with GitHub, however long that takes."""

from datetime import timedelta

import pytest

from bot.store import recoveries
from bot.store.database import Pool
from tests.support.patience import eventually


async def test_a_round_that_takes_longer_than_its_lease_keeps_it(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recoveries, "LEASE", timedelta(seconds=2))
    async with recoveries.only_one(pool) as is_first:
        first_end = await pool.fetchval("select held_until from leases")

        async def has_passed() -> bool:
            return bool(await pool.fetchval("select now() > $1", first_end))

        await eventually(has_passed)
        async with recoveries.only_one(pool) as is_second:
            assert (is_first, is_second) == (True, False)
    async with recoveries.only_one(pool) as is_next:
        assert is_next, "the round has ended"


async def test_the_lease_of_a_killed_process_is_waited_for(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recoveries, "LEASE", timedelta(seconds=2))
    await pool.execute("insert into leases values ('recovery', gen_random_uuid(), now() + $1)", timedelta(seconds=1))

    async with recoveries.only_one(pool) as is_ours:
        assert is_ours, "nobody renewed it, so its process is dead"
