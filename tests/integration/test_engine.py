"""The configured job engine on a real Postgres: waking, order, retries, killed workers, outages."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import procrastinate
import pytest
from procrastinate.jobs import Job, Status
from procrastinate.manager import JobManager
from procrastinate.worker import Worker
from psycopg.pq import TransactionStatus
from structlog.testing import capture_logs

from bot.inbox.decider_rows import count_stall
from bot.store import deliveries, engine
from bot.store.database import IDLE_IN_TRANSACTION, Pool, database
from bot.store.deliveries import NewDelivery
from bot.store.engine import Handlers, RetryLaterError
from bot.store.jobs import NewJob, defer, lock_queues, outbox_bell, ring
from tests.support.patience import PATIENCE_SECONDS
from tests.support.silent import silent_way
from tests.support.turn_rows import held, until, until_waiting

QUEUE = "decide"
WORKERS_HEAR = f"procrastinate_queue_v1#{QUEUE}"
SENDERS_HEAR = "procrastinate_queue_v1#outbox"
AN_HOUR_SECONDS = 3600.0

Handle = Callable[[str, int], Awaitable[None]]


def job(guid: str, lock: str | None = "thread") -> NewJob:
    return NewJob(QUEUE, "decide", lock, {"guid": guid})


async def put(pool: Pool, *jobs: NewJob) -> None:
    """Enqueue jobs as one of our transactions does."""
    async with held(pool) as db:
        await lock_queues(db, [job.lock for job in jobs if job.lock])
        for job in jobs:
            await defer(db, job)


async def unused(*_: object) -> Any:
    raise AssertionError("no such job was put in")


@asynccontextmanager
async def working(
    database_url: str, handle: Handle, concurrency: int = 4, *, grace_seconds: float = engine.SHUTDOWN_SECONDS
) -> AsyncIterator[procrastinate.App]:
    """Run a worker on the queue, whose jobs call `handle`."""
    stopping = asyncio.Event()
    async with engine.engine(database_url, Handlers(unused, handle)).open_async() as app:
        pool = engine.run_pool(app, QUEUE, concurrency, stopping, grace_seconds=grace_seconds)
        running = asyncio.create_task(pool)
        try:
            yield app
        finally:
            stopping.set()
            await asyncio.wait_for(running, PATIENCE_SECONDS)


async def test_a_suspended_process_holds_no_lock_for_long(database_url: str) -> None:
    async with database(database_url, size=1) as pool, working(database_url, unused) as app:
        assert await pool.fetchval("show idle_in_transaction_session_timeout") == IDLE_IN_TRANSACTION
        assert isinstance(app.connector, procrastinate.PsycopgConnector)
        async with app.connector.pool.connection() as connection:
            assert connection.autocommit
            await connection.execute("select 1")
            assert connection.info.transaction_status == TransactionStatus.IDLE


class Record:
    """A record of the jobs that ran, in order."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self._changed = asyncio.Event()

    async def handle(self, guid: str, attempts: int) -> None:
        self.note(guid)

    def note(self, guid: str) -> None:
        self.ran.append(guid)
        self._changed.set()

    async def until(self, count: int) -> list[str]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.ran) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.ran


async def statuses(pool: Pool) -> list[str]:
    rows = await pool.fetch("select status::text from procrastinate_jobs order by id")
    return [row["status"] for row in rows]


async def until_statuses(pool: Pool, *expected: str) -> None:
    async def match() -> bool:
        return await statuses(pool) == list(expected)

    await until(match)


# Waking


@pytest.fixture
async def heard(database_url: str) -> AsyncIterator["asyncio.Queue[object]"]:
    """Yield the notifications of the queues' workers, which then look for jobs."""
    messages: asyncio.Queue[object] = asyncio.Queue()
    db = await asyncpg.connect(database_url)
    for channel in (WORKERS_HEAR, SENDERS_HEAR):
        await db.add_listener(channel, lambda *message: messages.put_nowait(message[-1]))
    yield messages
    await db.close()


@asynccontextmanager
async def doing(database_url: str) -> AsyncIterator[tuple[JobManager, Job]]:
    """Yield the next job as a worker fetches it."""
    async with engine.engine(database_url, Handlers(unused)).open_async() as app:
        found = await app.job_manager.fetch_job([QUEUE], await app.job_manager.register_worker())
        assert found is not None
        yield app.job_manager, found


Leave = Callable[[JobManager, Job], Awaitable[None]]
WAYS_TO_LEAVE: dict[str, Leave] = {
    "done": lambda manager, job: manager.finish_job(job, Status.SUCCEEDED, delete_job=True),
    "failed": lambda manager, job: manager.finish_job(job, Status.FAILED, delete_job=False),
    "tried again": lambda manager, job: manager.retry_job(job),
}


async def next_heard(heard: "asyncio.Queue[object]") -> object:
    return await asyncio.wait_for(heard.get(), PATIENCE_SECONDS)


async def test_workers_are_notified_of_a_doorbell_when_its_transaction_commits(
    pool: Pool, heard: "asyncio.Queue[object]"
) -> None:
    async with held(pool) as db:
        await defer(db, outbox_bell("one"))
        await pool.execute("select pg_notify($1, 'nothing so far')", SENDERS_HEAR)
        assert await next_heard(heard) == "nothing so far"

    assert "job_inserted" in str(await next_heard(heard))


async def test_a_replayed_delivery_and_a_forgotten_one_tell_the_workers(
    pool: Pool, heard: "asyncio.Queue[object]"
) -> None:
    async with pool.acquire() as db:
        await deliveries.store(db, [NewDelivery("one", "issues", "received", lock_key="thread", body=b"{}")])
        assert "job_inserted" in str(await next_heard(heard))
        await db.execute("delete from procrastinate_jobs")
        await db.execute("update deliveries set received_at = now() - interval '1 minute'")
        assert await deliveries.decide_forgotten(db) == ["one"]
        assert "job_inserted" in str(await next_heard(heard))
        await db.execute("update deliveries set state = 'failed'")

        assert await deliveries.replay(db, "one") == "replayed"

    assert "job_inserted" in str(await next_heard(heard))


@pytest.mark.parametrize("way", WAYS_TO_LEAVE)
async def test_workers_are_notified_when_a_lock_is_free_for_its_next_job(
    database_url: str, pool: Pool, heard: "asyncio.Queue[object]", way: str
) -> None:
    await put(pool, job("first"), job("next"))
    async with doing(database_url) as (manager, first):
        await pool.execute("select pg_notify($1, 'nothing so far')", WORKERS_HEAR)
        while await next_heard(heard) != "nothing so far":
            pass

        await WAYS_TO_LEAVE[way](manager, first)

        assert "job_inserted" in str(await next_heard(heard))


# Order


async def test_jobs_of_one_lock_run_one_at_a_time_and_others_beside_them(database_url: str, pool: Pool) -> None:
    record, go_on = Record(), asyncio.Event()

    async def wait(guid: str, attempts: int) -> None:
        record.note(guid)
        await go_on.wait()

    async with working(database_url, wait):
        await put(pool, job("a1", "a"), job("a2", "a"), job("b1", "b"), job("free", None))
        assert sorted(await record.until(3)) == ["a1", "b1", "free"]
        assert sorted(await statuses(pool)) == ["doing", "doing", "doing", "todo"]

        go_on.set()
        assert (await record.until(4))[-1] == "a2"


async def test_a_retried_job_keeps_its_place_in_the_queue(database_url: str, pool: Pool) -> None:
    record = Record()

    async def fail_twice(guid: str, attempts: int) -> None:
        record.note(f"{guid}:{attempts}")
        if guid == "first" and attempts < 2:
            raise RetryLaterError(0.01, "not yet")

    async with working(database_url, fail_twice):
        await put(pool, job("first"), job("second"))
        await put(pool, job("third"))

        assert await record.until(5) == ["first:0", "first:1", "first:2", "second:0", "third:0"]
        await until_statuses(pool)


async def test_a_job_with_a_later_retry_waits_that_long(database_url: str, pool: Pool) -> None:
    record = Record()

    async def later(guid: str, attempts: int) -> None:
        record.note(guid)
        if attempts == 0:
            raise RetryLaterError(AN_HOUR_SECONDS, "an hour")

    async with working(database_url, later):
        await put(pool, job("one"))
        await record.until(1)
        await until_statuses(pool, "todo")

        wait = await pool.fetchval(
            "select extract(epoch from scheduled_at - now())::float from procrastinate_jobs where attempts = 1"
        )
        assert AN_HOUR_SECONDS - 60 < wait <= AN_HOUR_SECONDS
        await pool.execute("update procrastinate_jobs set scheduled_at = now()")
        assert await record.until(2) == ["one", "one"]


async def test_jobs_run_in_the_order_in_which_their_transactions_commit(pool: Pool) -> None:
    async with held(pool) as first:
        await lock_queues(first, ["thread"])
        second = asyncio.create_task(put(pool, job("second")))
        await until_waiting(pool)
        await defer(first, job("first"))
    await second

    rows = await pool.fetch("select args->>'guid' as guid from procrastinate_jobs order by id")
    assert [row["guid"] for row in rows] == ["first", "second"]


async def test_transactions_with_several_locks_never_deadlock(pool: Pool) -> None:
    async def put_both(*locks: str) -> None:
        for number in range(10):
            await put(pool, *(job(str(number), lock) for lock in locks))

    await asyncio.gather(put_both("a", "b", "c"), put_both("c", "b", "a"), put_both("b", "a"), put_both("c", "a"))

    assert len(await statuses(pool)) == 100


# Failing


@pytest.mark.expects_errors
async def test_a_bug_fails_its_job_at_once_and_keeps_it_for_a_month(database_url: str, pool: Pool) -> None:
    record = Record()

    async def fail(guid: str, attempts: int) -> None:
        record.note(guid)
        raise ZeroDivisionError

    async with working(database_url, fail) as app:
        await put(pool, job("bug"))
        await until_statuses(pool, "failed")
        for days, left in ((29, 1), (31, 0)):
            await pool.execute("update procrastinate_events set at = now() - make_interval(days => $1)", days)
            await engine.delete_old_jobs(app)
            assert await pool.fetchval("select count(*) from procrastinate_jobs") == left

    assert record.ran == ["bug"]


# Doorbells


async def test_one_doorbell_waits_for_a_writer(pool: Pool) -> None:
    for _ in range(3):
        async with held(pool) as db:
            await ring(db, "octo")
    assert await statuses(pool) == ["todo"]
    assert await pool.fetchval("select id from procrastinate_fetch_job_v2(array['outbox'], null)") is not None
    # The job may have looked already.
    async with held(pool) as db:
        await ring(db, "octo")
        await ring(db, "octo")
    assert await statuses(pool) == ["doing", "todo"]


# Killed workers


@pytest.fixture
async def killed_worker(database_url: str, pool: Pool) -> None:
    """Leave the state of a worker killed during "one", which blocks "two"."""
    await put(pool, job("one"), job("two"))
    async with doing(database_url):
        pass
    assert await statuses(pool) == ["doing", "todo"]


async def requeue(app: procrastinate.App) -> int:
    """Queue stalled jobs again."""

    async def stalled(guid: str, job_id: int) -> None:
        assert guid == "one"

    return await engine.retry_stalled_jobs(app, stalled)


@pytest.fixture
async def silent_worker(pool: Pool, killed_worker: None) -> None:
    """Leave the same with a heartbeat that is a minute old."""
    await pool.execute("update procrastinate_workers set last_heartbeat = now() - interval '1 minute'")


@pytest.mark.usefixtures("silent_worker")
async def test_jobs_of_a_silent_worker_run_again_in_their_order(database_url: str, pool: Pool) -> None:
    record = Record()
    async with working(database_url, record.handle) as app:
        assert await requeue(app) == 1
        assert await record.until(2) == ["one", "two"]
        await until_statuses(pool)
        assert await requeue(app) == 0


@pytest.mark.usefixtures("killed_worker")
async def test_jobs_of_an_already_deleted_worker_are_found(database_url: str, pool: Pool) -> None:
    record = Record()
    await pool.execute("delete from procrastinate_workers")
    async with working(database_url, record.handle) as app:
        assert await requeue(app) == 1
        assert await record.until(2) == ["one", "two"]


@pytest.mark.usefixtures("silent_worker")
async def test_each_death_of_a_worker_is_counted_once_for_its_delivery(database_url: str, pool: Pool) -> None:
    record, counted = Record(), list[int | None]()
    await pool.execute("insert into deliveries (guid, event, state, stalls) values ('one', 'issues', 'received', 3)")

    async def stalled(guid: str, job_id: int) -> None:
        async with held(pool) as db:
            counted.append(await count_stall(db, guid, job_id))

    async with engine.engine(database_url, Handlers(unused)).open_async() as app:
        await engine.retry_stalled_jobs(app, stalled)
        [job_id] = await pool.fetch("select id from procrastinate_jobs where args ->> 'guid' = 'one'")
        await stalled("one", job_id["id"])  # by another process, for which the job was stalled too
    assert counted == [4, None]
    async with working(database_url, record.handle):
        assert await record.until(2) == ["one", "two"]


@pytest.mark.usefixtures("silent_worker")
async def test_several_processes_requeue_a_job_once_and_each_time_counts(database_url: str, pool: Pool) -> None:
    async with engine.engine(database_url, Handlers(unused)).open_async() as app:
        assert sum(await asyncio.gather(*(requeue(app) for _ in range(4)))) >= 1

    assert await pool.fetchval("select attempts from procrastinate_jobs where status = 'todo' order by id") == 1


async def test_the_jobs_of_a_living_worker_are_left_alone(database_url: str, pool: Pool) -> None:
    record, go_on = Record(), asyncio.Event()

    async def wait(guid: str, attempts: int) -> None:
        record.note(guid)
        await go_on.wait()

    async with working(database_url, wait) as app:
        await put(pool, job("one"))
        await record.until(1)
        assert await requeue(app) == 0
        go_on.set()


# Outages


@pytest.mark.expects_errors
async def test_a_queue_survives_the_loss_of_its_connections(database_url: str, pool: Pool) -> None:
    record = Record()
    async with working(database_url, record.handle):
        await put(pool, job("before"))
        await record.until(1)
        await until_statuses(pool)

        ended = await pool.fetchval(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        assert ended > 0
        async with asyncpg.create_pool(database_url, min_size=1, max_size=2) as fresh:
            await put(fresh, job("after"), job("and after"))
            assert await record.until(3) == ["before", "after", "and after"]


@pytest.mark.expects_errors
async def test_a_queue_whose_connections_fell_silent_goes_on_and_ends_when_it_is_told_to(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STATEMENT_SECONDS", 0.5)
    record = Record()
    async with (
        silent_way(database_url) as way,
        database(database_url, size=2) as pool,
        working(way.dsn, record.handle),
    ):
        await put(pool, job("before"))
        await record.until(1)
        way.fall_silent()
        await put(pool, job("after"))
        assert await record.until(2) == ["before", "after"]
        way.fall_silent()


async def test_a_worker_that_others_took_for_dead_starts_anew_with_one_line(database_url: str, pool: Pool) -> None:
    record = Record()
    with capture_logs() as logs:
        async with working(database_url, record.handle):
            await put(pool, job("before"))
            await record.until(1)
            await until_statuses(pool)
            await pool.execute("delete from procrastinate_workers")

            await put(pool, job("after"))

            assert await record.until(2) == ["before", "after"]
    assert [line["event"] for line in logs if line["log_level"] != "info"] == ["worker-forgotten"]


@pytest.mark.parametrize(("attempts", "seconds"), [(0, 2), (1, 4), (2, 8), (8, 512), (9, 600), (1000, 600)])
def test_the_wait_doubles_up_to_ten_minutes(attempts: int, seconds: int) -> None:
    assert engine.backoff_seconds(attempts) == seconds


async def test_a_worker_ends_although_its_cancellation_is_lost_during_the_start(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registering = asyncio.Event()
    register = JobManager.register_worker

    async def swallowing(manager: JobManager) -> int:
        registering.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return await register(manager)

    monkeypatch.setattr(JobManager, "register_worker", swallowing)
    async with working(database_url, unused, grace_seconds=3600):  # for jobs, of which it has none
        await asyncio.wait_for(registering.wait(), PATIENCE_SECONDS)


@pytest.mark.expects_errors
async def test_an_unexpected_error_of_the_engine_restarts_its_worker(
    database_url: str, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = False
    run = Worker.run

    async def run_or_fail(self: Worker) -> None:
        nonlocal failed
        if not failed:
            failed = True
            raise ValueError("a bug of the engine")
        await run(self)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(Worker, "run", run_or_fail)
    record = Record()
    await put(pool, job("a"))
    async with working(database_url, record.handle):
        assert await record.until(1) == ["a"]
    assert failed
