"""One process at a time compares the inbox with GitHub, however long that takes."""

import pytest

from bot.inbox import recovery_rows as recoveries
from bot.store.database import Pool
from tests.support.patience import eventually

OTHER_SESSIONS = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"


async def test_while_one_process_compares_no_other_one_does(pool: Pool) -> None:
    async with recoveries.only_one(pool) as is_first, recoveries.only_one(pool) as is_second:
        assert (is_first, is_second) == (True, False)
    async with recoveries.only_one(pool) as is_next:
        assert is_next, "the round has ended"


async def test_a_round_that_lasts_keeps_its_session(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recoveries, "KEEP_ALIVE_SECONDS", 0.01)
    times = set[object]()

    async def was_used_again() -> bool:
        times.add(await pool.fetchval(f"select max(query_start) {OTHER_SESSIONS} and query = 'select'"))
        return len(times - {None}) >= 2

    async with recoveries.only_one(pool):
        await eventually(was_used_again)


async def test_the_round_of_a_killed_process_ends_with_its_session(pool: Pool) -> None:
    async def is_free() -> bool:
        async with recoveries.only_one(pool) as is_ours:
            return is_ours

    async with recoveries.only_one(pool) as is_first:
        assert is_first
        await pool.execute(f"select pg_terminate_backend(pid) {OTHER_SESSIONS} and query like '%advisory_lock(%'")
        await eventually(is_free)
