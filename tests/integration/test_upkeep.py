"""The repairs of housekeeping."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from bot.store import deliveries
from bot.store.database import Connection

ACCEPTED = """
insert into deliveries (guid, event, lock_key, state, body, received_at)
values ($1, 'issue_comment', $2, $3, '{}', now() - make_interval(secs => $4))
"""
JOBS = "select args->>'guid' as guid, lock from procrastinate_jobs order by id"


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


async def test_an_accepted_delivery_whose_job_is_gone_is_decided_all_the_same(db: Connection) -> None:
    for number, age in enumerate((60, 50), start=1):
        await db.execute(ACCEPTED, f"lost-{number}", "github.com/1#1", "received", age)

    assert await deliveries.decide_forgotten(db) == ["lost-1", "lost-2"]

    jobs = [tuple(row) for row in await db.fetch(JOBS)]
    assert jobs == [("lost-1", "github.com/1#1"), ("lost-2", "github.com/1#1")]
    assert await deliveries.decide_forgotten(db) == [], "its job waits now"


@pytest.mark.parametrize(("state", "age"), [("received", 0), ("done", 60), ("failed", 60), ("ignored", 60)])
async def test_a_delivery_that_was_handled_or_has_just_come_is_left_alone(db: Connection, state: str, age: int) -> None:
    await db.execute(ACCEPTED, "one", "github.com/1#1", state, age)
    assert await deliveries.decide_forgotten(db) == []
