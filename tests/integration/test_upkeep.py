"""The repairs of housekeeping."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import orjson
import pytest

from bot.care import upkeep_rows as upkeep
from bot.operator.api import listings
from bot.store import deliveries
from bot.store.database import DATABASE_AWAY, Connection, database
from bot.store.scope import EVERYTHING
from bot.turn import request_rows as requests
from tests.support.patience import eventually
from tests.support.turn_rows import TurnRows

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


# What is kept how long

WEEK, MONTH, YEAR = timedelta(days=7), timedelta(days=30), timedelta(days=365)
OF_THREE_TURNS = """
update requests set ask = ask || '{"context": "why"}' where turn_id < 3;
update turns set state = 'done', answer = 'Done.', notices = '{a notice}', read = '{the thread}',
                 plan = '{pending a plan}', latest_words = 'I', phase = 'Cloning',
                 finished_at = now() - case id when 1 then interval '366 days' else interval '364 days' end,
                 cost_usd = 0.5, reason = 'because'
where id < 3;
insert into steps (turn_id, place, words) select id, 1, 'Read a.txt' from turns order by id;
update steps set output = 'a', at = now() - interval '29 days';
insert into steps (turn_id, place, words, output, at)
select id, 2, 'Read b.txt', 'b', now() - interval '31 days' from turns where id > 1;
insert into outbox (writer, conversation_id, kind, turn_id, part, urgency, target_kind, content, state, created_at)
select 'github.com/token', 1, 'comment', id, 1, 1, 'issue', 'Done.', case when id < 3 then 'sent' else 'waiting' end,
       now() - case id when 2 then interval '364 days' else interval '366 days' end from turns order by id;
insert into outbox (writer, conversation_id, kind, urgency, target_kind, content, state, created_at, waits_for)
values ('github.com/token', 1, 'comment', 1, 'issue', 'linked', 'sent', now() - interval '366 days', null),
       ('github.com/token', 1, 'comment', 1, 'issue', 'linked, too', 'sent', now() - interval '366 days', null),
       ('github.com/token', 1, 'comment', 1, 'issue', 'links', 'waiting', now() - interval '366 days', 4),
       ('github.com/token', 1, 'comment', 1, 'issue', 'links', 'sent', now() - interval '364 days', 5);
insert into operations (node, kind, requested_by, state, outcome, finished_at)
values ('here', 'prune', 'ada', 'done', '1 removed.', now() - interval '366 days'),
       ('here', 'prune', 'ada', 'done', '1 removed.', now() - interval '364 days'),
       ('here', 'prune', 'ada', 'queued', null, null);
insert into effects (key, seen_at) values ('old', now() - interval '366 days'), ('new', now() - interval '364 days');
"""


async def test_texts_expire_and_the_rows_of_turns_stay(db: Connection) -> None:
    rows = TurnRows(db)
    thread, _ = await rows.home()
    for text in ("one", "two", "three"):
        await rows.ask(thread, text)
    before = [dict(await rows.row(turn)) for turn in (1, 2, 3)]
    await db.execute(OF_THREE_TURNS)
    queued = await rows.row(3)

    await upkeep.delete_old(db, WEEK, MONTH, YEAR)

    gone, kept = await rows.row(1), await rows.row(2)
    texts: dict[str, object] = {"text": "", "expired": True, "answer": None, "notices": [], "read": []}
    texts |= {"plan": [], "latest_words": "", "phase": None}
    assert {name: gone[name] for name in texts} == texts
    assert (gone["state"], gone["reason"], gone["cost_usd"]) == ("done", "because", 0.5)
    untouched = before[0].keys() - texts.keys() - {"state", "reason", "cost_usd", "finished_at", "words", "ask"}
    assert {name: gone[name] for name in untouched} == {name: before[0][name] for name in untouched}
    asked = orjson.loads(gone["ask"])
    assert (asked["context"], asked["title"], asked["of"], asked["by"]["login"]) == ("", "", {}, "ada")
    assert (kept["text"], kept["answer"], kept["read"]) == ("two", "Done.", ["the thread"])
    assert dict(await rows.row(3)) == dict(queued), "it has not ended"
    steps = await db.fetch("select turn_id, words, output from steps order by turn_id, place")
    assert [tuple(step) for step in steps] == [
        (2, "Read a.txt", "a"),
        (3, "Read a.txt", "a"),
        (3, "Read b.txt", "b"),
    ], "the agent of a turn that has not ended is told what it did"
    assert await column(db, "select id from outbox order by 1") == [2, 3, 4, 6, 7]
    assert await column(db, "select waits_for from outbox where id > 5 order by id") == [4, None]
    assert await column(db, "select id from operations order by 1") == [2, 3]
    assert await column(db, "select key from effects") == [b"new"]
    assert [row["id"] for row in await listings.newest(db, "turns", 9, scope=EVERYTHING)] == [3, 2, 1]
    expired, shown = [await listings.turn(db, one, EVERYTHING) for one in (1, 2)]
    assert expired is not None
    assert shown is not None
    assert (expired["request"], expired["expired"], expired["steps"]) == (None, True, [])
    assert (shown["request"], shown["expired"]) == ("two", False)


async def test_every_text_of_a_turn_expires_but_what_tells_how_it_ended(db: Connection) -> None:
    columns = await column(
        db,
        "select column_name::text from information_schema.columns"
        " where table_name in ('turns', 'requests') and data_type in ('text', 'ARRAY', 'json', 'jsonb', 'bytea')",
    )
    short = {
        "agent",
        "model",
        "verb",
        "head_before",
        "pushed_to",
        "pushed_head",
        "pushed_net",
        "switch_to",
        "worker",
        "queue_node",
        "needs",
        "blocked_by",
    }
    ends = {"state", "reason", "stop_reason", "requested_by", "queue_platform"}
    cleared = {str(name) for name in columns if f" {name} = " in upkeep.DELETE_OLD["texts"]}
    assert set(columns) - cleared == short | ends, "a new text of a turn must expire too"


async def test_an_expired_request_is_not_asked_again(db: Connection) -> None:
    rows = TurnRows(db)
    thread, _ = await rows.home()
    await rows.ask(thread)
    await db.execute("update turns set state = 'failed', reason = 'x', finished_at = now() - interval '366 days'")
    assert await requests.last_not_done(db, thread) is not None
    await upkeep.delete_old(db, MONTH, MONTH, YEAR)
    assert await requests.last_not_done(db, thread) is None


async def test_bodies_and_deliveries_expire_unless_they_wait(db: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "AT_ONCE", 2)
    for state in ("done", "failed", "ignored", "received"):
        for days in (29, 31, 364, 366):
            await db.execute(ACCEPTED, f"{state}-{days}", "github.com/1#1", state, days * 86400)

    await upkeep.delete_old(db, MONTH, WEEK, YEAR)

    with_body = await column(db, "select guid from deliveries where body is not null order by received_at, guid")
    waiting = [f"received-{days}" for days in (366, 364, 31)]
    assert with_body == [*waiting, "done-29", "failed-29", "ignored-29", "received-29"]
    assert await column(db, "select guid from deliveries where guid like '%-366'") == ["received-366"]
    assert await db.fetchval("select count(*) from deliveries") == 13


# Suspended processes


async def test_a_session_that_stops_in_the_middle_of_a_statement_loses_its_locks(
    db: Connection, database_url: str
) -> None:
    await db.execute("insert into effects (key) values ('one')")
    locking, all_wait = "update effects set seen_at = now()", "ClientRead ClientWrite PgSleep transactionid"
    async with database(database_url, size=4) as pool:
        suspended, deaf, computing, waiting = [await pool.acquire() for _ in range(4)]
        ended = [connection._con for connection in (suspended, deaf)]
        await suspended.execute(f"begin; {locking}")
        # asyncpg ends a new statement with a second message, which a process may not live to send.
        await suspended.prepare("select 1")
        large = await deaf.prepare("select repeat('x', 1000), pg_advisory_lock(1) from generate_series(1, 100000)")
        deaf._con._transport.pause_reading()
        running = [
            asyncio.ensure_future(work)
            for work in (large.fetch(), computing.fetch("select pg_sleep(3600)"), waiting.execute(locking))
        ]
        await eventually(lambda: they_wait_for(db, all_wait))

        await upkeep.end_suspended(db, timedelta(hours=1))
        await eventually(lambda: they_wait_for(db, all_wait))
        await upkeep.end_suspended(db, timedelta(0))
        assert await running[2] == "UPDATE 1", "what waited for the lock goes on"
        await db.fetchval("select pg_advisory_lock(1)")
        await eventually(lambda: they_wait_for(db, "PgSleep"))

        deaf._con._transport.resume_reading()
        running[1].cancel()
        assert isinstance((await asyncio.gather(running[0], return_exceptions=True))[0], DATABASE_AWAY)
        await eventually(lambda: have_ended(ended))
        for connection in (suspended, deaf, waiting):
            await pool.release(connection)
        again = [await pool.acquire() for _ in range(3)]
        assert [await connection.fetchval("select 1") for connection in again] == [1, 1, 1], "new sessions"
        for connection in (computing, *again):
            await pool.release(connection)


async def have_ended(connections: list[Any]) -> bool:
    """Return whether each has read that Postgres ended it: the message, and then the end of the stream."""
    return all(connection.is_closed() for connection in connections)


async def they_wait_for(db: Connection, expected: str) -> bool:
    """Return whether this is what the sessions of a pool wait for that are in the middle of a statement."""
    found: str | None = await db.fetchval(
        "select string_agg(wait_event, ' ' order by wait_event collate \"C\") from pg_stat_activity"
        " where datname = current_database() and application_name = 'threadtree' and state = 'active'"
    )
    return found == expected


async def column(db: Connection, statement: str) -> list[object]:
    return [row[0] for row in await db.fetch(statement)]
