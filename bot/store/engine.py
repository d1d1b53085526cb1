"""Procrastinate, the job engine between processes: our tasks, their queues, and workers that outlive outages.

Jobs are enqueued by `bot.store.jobs` inside our own transactions; this module only runs them.
"""

import asyncio
import contextlib
import select
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, LiteralString, cast

import procrastinate
import psycopg
import psycopg_pool
import structlog
from procrastinate import JobContext
from procrastinate import jobs as engine_jobs
from procrastinate.exceptions import ConnectorException
from procrastinate.job_context import JobResult
from procrastinate.retry import BaseRetryStrategy, RetryDecision
from procrastinate.worker import Worker

from bot.store.failures import log_failure

HEARTBEAT_SECONDS = 3.0
STALLED_AFTER_SECONDS = 12.0
POLL_SECONDS = 1.0
"""Delayed retries become due without a notification, so the poll is what starts them."""
REST_SECONDS = 0.02
"""After a fetch that found nothing: in a burst each decision rings for the outbox, also while that is at work."""
SHUTDOWN_SECONDS = 5.0
"""The time that running jobs get at the end; those that take longer are queued again."""
EMPTYING_SECONDS = 5.0
REPEAT_FOR_SECONDS = 60.0
"""After so long without the database our workers count as dead, and their jobs are queued again."""
MAX_STALLS = 10
"""A delivery whose worker died so often while it was decided is given up: it may be what kills them."""
RETRY_FOR_SECONDS = 24 * 3600
_log = structlog.get_logger()

FETCH = """
-- As many jobs as there are, at most %(most)s, by the engine's own function; each call sees what the one before took.
with recursive fetched as (
    select 1 as place, procrastinate_fetch_job_v2(array[%(queue)s::varchar], %(worker)s) as job
    union all
    select place + 1, procrastinate_fetch_job_v2(array[%(queue)s::varchar], %(worker)s)
    from fetched where place < %(most)s and (job).id is not null
)
select (job).* from fetched where (job).id is not null
"""

RECORD_WORKER = """
insert into engine_workers (worker_id, node, process) values (%(worker)s, %(node)s, %(process)s)
"""

PROCESSES = """
select distinct process from engine_workers where node = %(node)s
"""

FORGET_WORKERS = """
-- Their jobs then belong to no worker.
delete from procrastinate_workers w using engine_workers e
where e.worker_id = w.id and e.node = %(node)s and e.process = any (%(processes)s)
"""

REQUEUE = """
-- Jobs of forgotten and of silent workers. In one statement: a job that another process has requeued may run again.
-- A delivery that has killed its worker so often is returned to be given up, and keeps its job until then. One whose
-- row is locked is not counted this time: the process that holds it may be suspended.
with stalled as (
    select id, task_name, args ->> 'guid' as guid from procrastinate_jobs
    where status = 'doing'
      and (worker_id is null or worker_id in (select id from procrastinate_workers
                                              where last_heartbeat < now() - make_interval(secs => %(silent)s)))
    for update skip locked
), counted as (
    update deliveries set stalls = stalls + 1
    where guid in (select guid from deliveries where state = 'received'
                   and guid in (select guid from stalled where task_name = 'decide') for update skip locked)
    returning guid, stalls
), given_up as (
    select id, guid from stalled join counted using (guid) where stalls >= %(most)s
), requeued as (
    select id, procrastinate_retry_job_v2(id, now(), null, null, null) from stalled
    where id not in (select id from given_up)
)
select id, null as guid from requeued union all select id, guid from given_up
"""


class RetryLaterError(Exception):
    """A task met a problem that passes: run the job again after `seconds` and keep its lock."""

    def __init__(self, seconds: float, why: str) -> None:
        super().__init__(why)
        self.seconds = seconds


class _Connector(procrastinate.PsycopgConnector):
    """A connector that retries lost statements: a job whose end is not recorded would keep its lock."""

    async def execute_query_async(self, query: LiteralString, **arguments: Any) -> None:
        deadline = asyncio.get_running_loop().time() + REPEAT_FOR_SECONDS
        while True:
            try:
                await super().execute_query_async(query, **arguments)
                return
            except ConnectorException as problem:
                lost = isinstance(problem.__cause__, psycopg.OperationalError)
                if not lost or asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(POLL_SECONDS)


class _Retry(BaseRetryStrategy):
    def get_retry_decision(self, *, exception: BaseException, job: engine_jobs.Job) -> RetryDecision | None:
        if isinstance(exception, asyncio.CancelledError):
            return RetryDecision(retry_in={"seconds": 0})  # this process stops; another one does it
        if not isinstance(exception, RetryLaterError):
            return None
        return RetryDecision(retry_in={"seconds": max(1, round(exception.seconds))})


def _pool(**options: Any) -> psycopg_pool.AsyncConnectionPool:
    return psycopg_pool.AsyncConnectionPool(**options | {"check": _check_connection})


async def _check_connection(connection: psycopg.AsyncConnection) -> None:
    """Ask Postgres before the connection is used if there is something to read, such as the end of an idle one."""
    idle = select.poll()
    idle.register(connection.fileno(), select.POLLIN)
    if idle.poll(0):
        await psycopg_pool.AsyncConnectionPool.check_connection(connection)


async def _commit_each_statement(connection: psycopg.AsyncConnection) -> None:
    """Let no transaction stay open between two messages: a process that is suspended there would hold its locks."""
    await connection.set_autocommit(True)


def backoff_seconds(attempts: int) -> float:
    """Return the pause after so many failed attempts: 2, 4, 8 … at most 600 seconds."""
    return float(min(2 ** min(attempts + 1, 10), 600))


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """The process whose workers these are: its node, and its name there (see `bot.node.process_lock`)."""

    node: str
    name: str


@dataclass(frozen=True, slots=True)
class Handlers:
    """The functions of the jobs. Each may raise RetryLaterError; any other exception ends its job as failed."""

    decide: Callable[[str, int, int], Awaitable[bool]]
    """(GUID, its job, attempts so far); whether it has ended the job with the delivery."""
    outbox: Callable[[str], Awaitable[None]]
    """(writer)"""


def engine(dsn: str, handlers: Handlers) -> procrastinate.App:
    """Return the engine's app with our two tasks; open it before use."""
    connector = _Connector(
        conninfo=dsn,
        min_size=1,
        max_size=8,
        timeout=10,
        configure=_commit_each_statement,
        pool_factory=_pool,
    )
    app = procrastinate.App(connector=connector)
    retry = _Retry()

    @app.task(name="decide", pass_context=True, retry=retry)
    async def decide(context: JobContext, guid: str) -> bool:
        return await handlers.decide(guid, cast("int", context.job.id), context.job.attempts)

    @app.task(name="outbox", retry=retry)
    async def outbox(writer: str) -> None:
        await handlers.outbox(writer)

    return app


class _Worker(Worker):
    """A worker that records its process, and fetches again if a notification arrived while it fetched.

    Procrastinate's own forgets those: the next job then waits for the poll. Short jobs of one lock in a row meet that
    almost every time. A task that returns True has ended its job itself. `concurrency` is how many jobs run at once
    however long they take; with them up to `ahead` more are fetched, by one statement.
    """

    _heard_while_fetching = False
    _rests_until = 0.0

    def __init__(
        self, app: procrastinate.App, process: WorkerProcess, queue: str, concurrency: int, ahead: int, **options: Any
    ) -> None:
        super().__init__(app, queues=[queue], name=queue, concurrency=concurrency, **options)
        self._process = process
        self._queue = queue
        self._ahead = ahead
        self._has_place = asyncio.Event()

    async def _run_loop(self) -> None:
        await self.app.connector.execute_query_async(
            RECORD_WORKER, worker=self.worker_id, node=self._process.node, process=self._process.name
        )
        await super()._run_loop()  # type: ignore[no-untyped-call]

    async def _handle_notification(self, *, channel: str, notification: engine_jobs.Notification) -> None:
        self._heard_while_fetching = True
        await super()._handle_notification(channel=channel, notification=notification)

    async def _fetch_and_process_jobs(self) -> None:
        self._heard_while_fetching = False
        await self._fetch()
        while self._heard_while_fetching and not self._stop_event.is_set():
            self._heard_while_fetching = False
            await self._fetch()

    async def _persist_job_status(
        self,
        job: engine_jobs.Job,
        status: engine_jobs.Status,
        retry_decision: RetryDecision | None,
        context: JobContext,
        job_result: JobResult | None,
    ) -> None:
        if job_result is not None and job_result.result is True:
            return
        try:
            await super()._persist_job_status(job, status, retry_decision, context, job_result)
        except ConnectorException as problem:
            # It has ended meanwhile: with its delivery, or by a process that took this one for dead.
            if not isinstance(problem.__cause__, psycopg.errors.RaiseException):
                raise
            _log.info("job-is-gone", job=job.id)

    async def _fetch(self) -> None:
        """Start the jobs that wait, as places get free, until there is none left or the worker stops."""
        loop = asyncio.get_running_loop()
        while True:
            await self._place()
            await asyncio.sleep(max(0.0, self._rests_until - loop.time()))
            if self._stop_event.is_set():
                return
            most = self.concurrency + self._ahead - len(self._running_jobs)
            rows = await self.app.connector.execute_query_all_async(
                FETCH, queue=self._queue, worker=self.worker_id, most=most
            )
            self._new_job_event.clear()
            for row in rows:
                self._start(engine_jobs.Job.from_row(row))
            if not rows:
                self._rests_until = loop.time() + REST_SECONDS
            if len(rows) < most:
                return

    async def _place(self) -> None:
        """Wait until fewer jobs run than `concurrency`, or the worker stops."""
        while len(self._running_jobs) >= self.concurrency and not self._stop_event.is_set():
            self._has_place.clear()
            await self._has_place.wait()

    def stop(self) -> None:
        super().stop()  # type: ignore[no-untyped-call]
        self._has_place.set()

    def _start(self, job: engine_jobs.Job) -> None:
        context = JobContext(
            app=self.app,
            worker_name=self.worker_name,
            worker_queues=self.queues,
            job=job,
            abort_reason=lambda: self._job_ids_to_abort.get(cast("int", job.id)),
            start_timestamp=time.time(),
        )
        task = asyncio.create_task(self._process_job(context))
        self._running_jobs[task] = context
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._running_jobs[task]
        self._has_place.set()


async def run_pool(
    app: procrastinate.App,
    process: WorkerProcess,
    queue: str,
    concurrency: int,
    stopping: asyncio.Event,
    *,
    ahead: int = 0,
    empty_at_end: bool = False,
) -> None:
    """Work on one queue until `stopping`, or a little longer to empty it; outlive outages of Postgres.

    `ahead`: see `_Worker`.
    """
    failures = 0
    while not stopping.is_set():
        try:
            worker = _worker(app, process, queue, concurrency, ahead)
            working = asyncio.create_task(worker.run())  # type: ignore[no-untyped-call]
            stop = asyncio.create_task(stopping.wait())
            try:
                await asyncio.wait({working, stop}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stop.cancel()
                await _end(worker, working)
            failures = 0
        except Exception as problem:  # noqa: BLE001 - an error of one queue restarts its worker and nothing else
            failures = min(failures + 1, 4)
            if _is_forgotten(problem):
                _log.warning("worker-forgotten", queue=queue)
            else:
                log_failure(f"queue {queue}", problem)
        if not stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), timeout=min(0.5 * 2**failures, 5))
    if empty_at_end:
        with contextlib.suppress(ConnectorException, OSError, TimeoutError):
            async with asyncio.timeout(EMPTYING_SECONDS):
                await _worker(app, process, queue, concurrency, ahead, wait=False).run()  # type: ignore[no-untyped-call]


def _is_forgotten(problem: Exception) -> bool:
    """Return whether other processes took the worker for dead: its process was suspended for long, and woke up."""
    match problem:
        case ConnectorException(__cause__=psycopg.errors.ForeignKeyViolation()):
            return True  # it takes a job, or records its process, and its row is gone
        case _:
            return False


async def _end(worker: _Worker, working: asyncio.Task[None]) -> None:
    """End a worker. While it registers itself a cancellation can get lost (`asyncio.wait_for` of Python 3.11 swallows
    one that meets a result), so it is told to stop until it has stopped.
    """
    working.cancel()
    while not working.done():
        await asyncio.wait({working}, timeout=0.2)
        worker.stop()
    with contextlib.suppress(asyncio.CancelledError):
        await working


def _worker(
    app: procrastinate.App, process: WorkerProcess, queue: str, concurrency: int, ahead: int, *, wait: bool = True
) -> _Worker:
    """Return a worker for the queue until it is stopped, or without `wait` until the queue is empty."""
    return _Worker(
        app,
        process,
        queue,
        concurrency,
        ahead,
        wait=wait,
        install_signal_handlers=False,
        fetch_job_polling_interval=POLL_SECONDS,
        update_heartbeat_interval=HEARTBEAT_SECONDS,
        stalled_worker_timeout=STALLED_AFTER_SECONDS,
        shutdown_graceful_timeout=SHUTDOWN_SECONDS,
        delete_jobs="successful",
    )


async def requeue_stalled_jobs(
    app: procrastinate.App, node: str, is_alive: Callable[[str], bool]
) -> tuple[int, list[tuple[str, int]]]:
    """Queue the jobs of dead workers again; return how many there were, and the deliveries to be given up with their
    jobs, which are not queued again.

    `is_alive` tells of a process of this node. Workers of other nodes are dead after STALLED_AFTER_SECONDS of silence.
    """
    known = await app.connector.execute_query_all_async(PROCESSES, node=node)
    if dead := [row["process"] for row in known if not is_alive(row["process"])]:
        await app.connector.execute_query_async(FORGET_WORKERS, node=node, processes=dead)
    found = await app.connector.execute_query_all_async(REQUEUE, silent=STALLED_AFTER_SECONDS, most=MAX_STALLS)
    return len(found), [(row["guid"], row["id"]) for row in found if row["guid"]]
