import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import orjson
import pytest

from bot.inbox.inbox import Floods, Inbox, Unavailable
from bot.postgres.embedded import embedded_postgres
from bot.store import deliveries
from bot.store.database import DATABASE_AWAY, Pool
from bot.store.deliveries import NewDelivery
from bot.store.jobs import lock_queues
from bot.store.migrate import migrate
from tests.support.patience import PATIENCE_SECONDS, eventually
from tests.support.webhook_sender import comment, jobs, rows, sending_to

SAFE_FROM_KILLS = {"fsync": "off"}  # only a crash of the machine could make a difference


def delivery(guid: str, conversation: str = "1") -> NewDelivery:
    return NewDelivery(guid, "issue_comment", "received", lock_key=f"github.com/99#{conversation}", body=b"{}")


@asynccontextmanager
async def holding(pool: Pool, conversation: str) -> AsyncIterator[None]:
    """Block the storage of deliveries of this conversation."""
    async with pool.acquire() as connection, connection.transaction():
        await lock_queues(connection, [f"github.com/99#{conversation}"])
        yield


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await condition():  # noqa: ASYNC110 -- Postgres has no event for it
            await asyncio.sleep(0.01)


async def until_waiting(pool: Pool, count: int = 1) -> None:
    """Wait until this many transactions wait for a lock."""

    async def are_waiting() -> bool:
        waiting = await pool.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
        return bool(waiting == count)

    await until(are_waiting)


async def test_deliveries_that_arrive_together_are_committed_together_and_decided_in_order(pool: Pool) -> None:
    inbox = Inbox(pool, writers=1, group_size=16)
    async with holding(pool, "1"):
        first = asyncio.create_task(inbox.store(delivery("first")))
        await until_waiting(pool)
        others = [asyncio.create_task(inbox.store(delivery(f"other-{n}", str(n)))) for n in range(20)]
    assert await asyncio.gather(first, *others) == ["stored"] * 21
    groups = await pool.fetch("select count(*) as size from deliveries group by xmin order by min(seq)")
    assert [group["size"] for group in groups] == [1, 16, 4]
    assert [guid for *_, guid in await jobs(pool)] == ["first", *(f"other-{n}" for n in range(20))]


async def decided_in(pool: Pool) -> AsyncIterator[str]:
    """Yield the GUIDs of the waiting jobs as the engine gives them out, each done at once."""
    worker = await pool.fetchval("insert into procrastinate_workers default values returning id")
    while job := await pool.fetchrow("select id, args from procrastinate_fetch_job_v2(array['decide'], $1)", worker):
        if job["id"] is None:
            break
        yield orjson.loads(job["args"])["guid"]
        await pool.execute("delete from procrastinate_jobs where id = $1", job["id"])


async def test_a_flood_is_decided_after_what_others_ask(pool: Pool) -> None:
    def asked(guid: str, conversation: str, sender: int, repository: int = 99) -> NewDelivery:
        return NewDelivery(
            guid, "issue_comment", "received", lock_key=f"github.com/{repository}#{conversation}", sender=sender
        )

    inbox = Inbox(pool)
    for number in range(300):
        await inbox.store(asked(f"noisy {number}", str(number % 60), 7))
    await inbox.store(asked("in the noisy thread", "1", 8))
    await inbox.store(asked("in the noisy repository", "900", 8))
    await inbox.store(asked("elsewhere", "1", 9, repository=98))
    for number in range(3):
        await inbox.store(asked(f"noisy again {number}", "900", 7))

    order = [guid async for guid in decided_in(pool)]

    assert len(order) == 306
    assert order.index("elsewhere") < 30, "of the noisy ones, only what is no flood yet goes first"
    assert order.index("in the noisy repository") < 60
    assert [guid for guid in order if guid.startswith("noisy again")] == [f"noisy again {n}" for n in range(3)]
    noisy = [int(guid.removeprefix("noisy ")) for guid in order if guid.removeprefix("noisy ").isdigit()]
    for thread in range(60):
        assert [n for n in noisy if n % 60 == thread] == list(range(thread, 300, 60)), "a thread keeps its order"
    assert order.index("in the noisy thread") > order.index("noisy 241"), "also with others in it"


async def test_a_decision_never_overtakes_an_earlier_one_of_its_thread_that_is_tried_again(pool: Pool) -> None:
    async with pool.acquire() as connection:
        await deliveries.store(connection, [replace(delivery("first"), priority=-3)])
        worker = await pool.fetchval("insert into procrastinate_workers default values returning id")
        job = await pool.fetchval("select id from procrastinate_fetch_job_v2(array['decide'], $1)", worker)
        await deliveries.store(connection, [delivery("second")])
    await pool.execute("update procrastinate_jobs set status = 'todo', worker_id = null where id = $1", job)
    assert [guid async for guid in decided_in(pool)] == ["first", "second"]


def test_a_flood_is_forgotten_after_a_while_and_levels_are_bounded() -> None:
    now = 0.0
    floods = Floods(lambda: now)
    flood = [floods.priority(replace(delivery("one"), sender=7)) for _ in range(500)]
    assert flood[0] == 0
    assert flood[:19] == [0] * 19
    assert flood[-1] == -25 - 2
    assert sorted(flood, reverse=True) == flood
    now = 400.0
    assert floods.priority(replace(delivery("one"), sender=7)) == -5
    now = 600.0
    assert floods.priority(replace(delivery("one"), sender=7)) == 0
    for sender in range(30_000):
        floods.priority(replace(delivery("one"), sender=sender))
    assert len(floods._levels) == 10_000


async def test_a_late_commit_does_not_hold_up_the_next_group(pool: Pool) -> None:
    inbox = Inbox(pool)
    async with holding(pool, "1"):
        late = asyncio.create_task(inbox.store(delivery("late")))
        await until_waiting(pool)
        assert await inbox.store(delivery("next", "2")) == "stored"
        assert not late.done()
    assert await late == "stored"


async def test_the_same_guid_twice_in_one_group_is_stored_once(pool: Pool) -> None:
    inbox = Inbox(pool)
    outcomes = await asyncio.gather(*(inbox.store(delivery(guid)) for guid in "aabababcaa"))
    assert Counter(outcomes) == {"stored": 3, "duplicate": 7}
    assert sorted(guid for *_, guid in await jobs(pool)) == ["a", "b", "c"]


async def test_one_bad_row_does_not_take_the_others_of_its_group_with_it(pool: Pool) -> None:
    bad = NewDelivery("bad", "push", "ignored", action="NUL is no text: \0")
    inbox = Inbox(pool)
    outcomes = await asyncio.gather(
        inbox.store(delivery("a")), inbox.store(bad), inbox.store(delivery("b")), return_exceptions=True
    )
    assert outcomes[0] == outcomes[2] == "stored"
    assert isinstance(outcomes[1], asyncpg.CharacterNotInRepertoireError)
    assert set(await rows(pool)) == {"a", "b"}


async def test_a_connection_lost_while_idle_or_at_work_is_replaced(pool: Pool) -> None:
    kill = (
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
        " and pid <> pg_backend_pid()"
    )
    inbox = Inbox(pool, writers=1)
    async with pool.acquire() as other:
        async with other.transaction():
            await lock_queues(other, ["github.com/99#1"])
            storing = asyncio.create_task(inbox.store(delivery("g-1")))
            await until_waiting(pool)
            await other.execute(kill)
        assert await storing == "stored"
        await other.execute(kill)
        assert await inbox.store(delivery("g-2")) == "stored"


async def test_a_database_that_hangs_is_unavailable_within_the_time_and_loses_nothing(pool: Pool) -> None:
    inbox = Inbox(pool, attempt_seconds=0.1, answer_seconds=PATIENCE_SECONDS)
    async with holding(pool, "1"):
        assert await inbox.store(delivery("g-1")) == Unavailable("the database is away")
    # GitHub sends it again, and now the database has enough time.
    inbox = Inbox(pool, attempt_seconds=PATIENCE_SECONDS, answer_seconds=PATIENCE_SECONDS)
    assert await inbox.store(delivery("g-1")) in ("stored", "duplicate")  # the first may have been committed
    assert [guid for *_, guid in await jobs(pool)] == list(await rows(pool)) == ["g-1"]


async def test_a_connection_that_is_closed_between_two_steps_counts_as_an_outage(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_statement = asyncpg.Connection._get_statement

    async def close_afterwards(connection: asyncpg.Connection, *arguments: Any, **options: Any) -> Any:
        statement = await get_statement(connection, *arguments, **options)
        connection.terminate()
        return statement

    inbox = Inbox(pool)
    with monkeypatch.context() as patch:
        patch.setattr(asyncpg.Connection, "_get_statement", close_afterwards)
        assert await inbox.store(delivery("g-1")) == Unavailable("the database is away")
    assert await inbox.store(delivery("g-1")) == "stored"


async def test_the_answer_comes_within_its_time(pool: Pool) -> None:
    inbox = Inbox(pool, answer_seconds=0.1)
    async with holding(pool, "1"):
        assert isinstance(await inbox.store(delivery("g-1")), Unavailable)


async def test_a_request_that_is_gone_takes_no_other_of_its_group_with_it(pool: Pool) -> None:
    inbox = Inbox(pool)
    async with holding(pool, "1"):
        leader, other = (asyncio.create_task(inbox.store(delivery(guid))) for guid in ("g-1", "g-2"))
        await until_waiting(pool)
        leader.cancel()
    assert await other == "stored"
    assert set(await rows(pool)) == {"g-1", "g-2"}


async def _lock_queues(pool: Pool, locks: str) -> None:
    async with pool.acquire() as connection, connection.transaction():
        await lock_queues(connection, [f"github.com/99#{lock}" for lock in locks])


async def _store(pool: Pool, locks: str) -> None:
    async with pool.acquire() as connection:
        await deliveries.store(connection, [delivery(f"{locks}-{place}", lock) for place, lock in enumerate(locks)])


@pytest.mark.parametrize("held", ["1", "2", "3"])
@pytest.mark.parametrize("take", [_lock_queues, _store])
async def test_groups_of_the_same_locks_in_opposite_order_do_not_deadlock(
    pool: Pool, take: Callable[[Pool, str], Coroutine[Any, Any, None]], held: str
) -> None:
    async with holding(pool, held):
        groups = [asyncio.create_task(take(pool, locks)) for locks in ("123", "321")]
        await until_waiting(pool, 2)
    await asyncio.gather(*groups)


async def test_groups_with_the_same_guids_in_opposite_order_do_not_deadlock(pool: Pool) -> None:
    async def store(*guids: str) -> set[str]:
        async with pool.acquire() as connection:
            ignored = [NewDelivery(guid, "push", "ignored") for guid in guids]
            return set((await deliveries.store(connection, ignored)).guids)

    async with pool.acquire() as other:
        writing = other.transaction()
        await writing.start()
        await other.execute("insert into deliveries (guid, event, state) values ('b', 'push', 'ignored')")
        one = asyncio.create_task(store("a", "b", "c"))
        two = asyncio.create_task(store("c", "b", "a"))
        await until_waiting(pool, 2)
        await writing.rollback()
    assert sorted(await asyncio.gather(one, two), key=len) == [set(), {"a", "b", "c"}]


async def test_a_database_killed_during_a_stream_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    async with embedded_postgres(tmp_path, None, SAFE_FROM_KILLS) as url:
        await migrate(url)
        async with asyncpg.create_pool(url, min_size=1, max_size=4) as pool:
            inbox = Inbox(pool)
            answers = await _stream_through_a_kill(inbox, tmp_path)
            await eventually(partial(_answers, pool))
            kept = await rows(pool)
            assert Counter(answers.values()).keys() == {202, 503}
            assert {guid for guid, status in answers.items() if status == 202} <= kept.keys()
            assert {guid for *_, guid in await jobs(pool)} == kept.keys()


async def _answers(pool: Pool) -> bool:
    """Return whether the database answers: a session of the killed one may have, and be gone."""
    try:
        await pool.fetchval("select 1")
    except DATABASE_AWAY:
        return False
    return True


async def _stream_through_a_kill(inbox: Inbox, directory: Path) -> dict[str, int]:
    """Send with four senders until the database was gone and came back; return the status by GUID."""
    answers: dict[str, int] = {}
    back = asyncio.Event()

    async def stream(sender_number: int) -> None:
        async with sending_to(inbox) as github:
            while not back.is_set():
                guid = f"g-{len(answers)}-{sender_number}"
                was_away = 503 in answers.values()
                answer = await github.send(comment(len(answers) % 5 + 1), guid=guid)
                answers[guid] = answer.status_code
                if answer.status_code == 503:
                    assert int(answer.headers["Retry-After"]) > 0
                elif was_away:
                    back.set()
                elif len(answers) == 50:
                    os.kill(int((directory / "data/postmaster.pid").read_text().split()[0]), signal.SIGKILL)

    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as senders:
        for number in range(4):
            senders.create_task(stream(number))
    return answers
