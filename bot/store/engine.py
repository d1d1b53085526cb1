"""Procrastinate, the job engine between processes: our tasks, their queues, and workers that outlive outages.

Our own transactions enqueue its jobs, by `bot.store.jobs`; this module runs them, by the engine's public interface.
"""

import asyncio
import contextlib
import select
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, LiteralString, TypeVar

import procrastinate
import psycopg
import psycopg_pool
import structlog
from procrastinate import JobContext
from procrastinate import jobs as engine_jobs
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException
from procrastinate.retry import BaseRetryStrategy, RetryDecision
from procrastinate.worker import Worker

from bot.store.failures import log_failure

HEARTBEAT_SECONDS = 2.0
STALLED_AFTER_SECONDS = 6.0
"""After so long without a heartbeat a worker's jobs run elsewhere. If it was only suspended, it loses or repeats."""
POLL_SECONDS = 1.0
"""Delayed retries become due without a notification, so the poll is what starts them."""
SHUTDOWN_SECONDS = 5.0
"""The time that running jobs get at the end; those that take longer are queued again."""
EMPTYING_SECONDS = 5.0
ENDING_SECONDS = 10.0
"""What a worker gets beyond that, for statements that a database without an answer holds up."""
STATEMENT_SECONDS = 15.0
"""After so long without an answer a connection counts as silent, and with it all of the pool."""
_CLOCKS = {
    "connect_timeout": 5,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # milliseconds
}
"""https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS"""
CONNECTIONS = 3
"""To Postgres, beside one for each queue that listens."""
REPEAT_FOR_SECONDS = 60.0
"""How long the end of a job is tried to be written while the database is away."""
MAX_STALLS = 10
"""A delivery whose worker died so often while it was decided is given up: it may be what kills them."""
RETRY_FOR_SECONDS = 24 * 3600
FAILED_JOBS_KEPT_DAYS = 30
CHORE = "chore"
T = TypeVar("T")
_log = structlog.get_logger()


class RetryLaterError(Exception):
    """A task met a problem that passes: run the job again after `seconds` and keep its lock."""

    def __init__(self, seconds: float, why: str) -> None:
        super().__init__(why)
        self.seconds = seconds


class _Connector(procrastinate.PsycopgConnector):
    """A connector that waits for no answer for ever, and retries lost statements: a job whose end is not recorded would
    keep its lock.

    If another process took this one for dead and ended the job, there is nothing to record.
    """

    async def _answered(self, statement: Awaitable[T]) -> T:
        """Return the statement's result. Where none comes, its connection says nothing any more, nor may the others:
        after a fail-over behind a proxy, for example.
        """
        try:
            async with asyncio.timeout(STATEMENT_SECONDS):
                return await statement
        except TimeoutError:
            await self.pool.drain()
            raise ConnectorException from psycopg.OperationalError("the database did not answer in time")

    async def execute_query_one_async(self, query: LiteralString, **arguments: Any) -> dict[str, Any]:
        return await self._answered(super().execute_query_one_async(query, **arguments))

    async def execute_query_all_async(self, query: LiteralString, **arguments: Any) -> list[dict[str, Any]]:
        return await self._answered(super().execute_query_all_async(query, **arguments))

    async def execute_query_async(self, query: LiteralString, **arguments: Any) -> None:
        deadline = asyncio.get_running_loop().time() + REPEAT_FOR_SECONDS
        while True:
            try:
                await self._answered(super().execute_query_async(query, **arguments))
                return
            except ConnectorException as problem:
                match problem.__cause__:
                    case psycopg.errors.RaiseException():
                        _log.info("job-is-gone", job=arguments.get("job_id"))
                        return
                    case psycopg.OperationalError() if asyncio.get_running_loop().time() < deadline:
                        pass
                    case _:
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


async def _elsewhere(*_: object) -> None:
    raise NotImplementedError("this process has no worker of that queue")


@dataclass(frozen=True, slots=True)
class Handlers:
    """The functions of the jobs. Each may raise RetryLaterError; any other exception ends its job as failed."""

    worktree: Callable[[int], Awaitable[None]]
    """(worktree)"""
    decide: Callable[[str, int], Awaitable[None]] = _elsewhere
    """(GUID, attempts so far)"""
    outbox: Callable[[str], Awaitable[None]] = _elsewhere
    """(writer)"""
    chores: Mapping[str, Callable[[], Awaitable[None]]] = field(default_factory=dict)
    """By name; what a node does from time to time."""
    node: Callable[[int], Awaitable[None]] = _elsewhere
    """(operation)"""
    notify: Callable[[int, Any, Any, int], Awaitable[None]] = _elsewhere
    """(turn, event, what it waits for, tries so far)"""


def engine(dsn: str, handlers: Handlers) -> procrastinate.App:
    """Return the engine's app with our tasks; open it before use."""
    connector = _Connector(
        conninfo=dsn,
        min_size=1,
        max_size=CONNECTIONS,
        timeout=10,
        kwargs=_CLOCKS,
        configure=_commit_each_statement,
        pool_factory=_pool,
    )
    app = procrastinate.App(connector=connector)
    retry = _Retry()

    @app.task(name="decide", pass_context=True, retry=retry)
    async def decide(context: JobContext, guid: str) -> None:
        await handlers.decide(guid, context.job.attempts)

    @app.task(name="outbox", retry=retry)
    async def outbox(writer: str) -> None:
        await handlers.outbox(writer)

    @app.task(name="worktree", retry=retry)
    async def in_worktree(worktree: int) -> None:
        await handlers.worktree(worktree)

    @app.task(name="node", retry=retry)
    async def on_node(operation: int) -> None:
        await handlers.node(operation)

    @app.task(name="notify", pass_context=True, retry=retry)
    async def notify(context: JobContext, turn: int, event: str, waits_for: str | None) -> None:
        await handlers.notify(turn, event, waits_for, context.job.attempts)

    @app.task(name=CHORE)
    async def chore(name: str) -> None:
        await handlers.chores[name]()

    return app


def chores_of(node: str) -> str:
    """Return the queue of the node's chores."""
    return f"chores:{node}"


async def defer_chore(app: procrastinate.App, node: str, name: str) -> None:
    """Enqueue a chore of the node, unless it waits already."""
    with contextlib.suppress(AlreadyEnqueued):
        chore = app.configure_task(CHORE, queue=chores_of(node), queueing_lock=f"{name}:{node}")
        await chore.defer_async(name=name)


async def delete_old_jobs(app: procrastinate.App) -> None:
    """Delete the jobs that failed long ago; those that succeed are deleted at once."""
    hours = FAILED_JOBS_KEPT_DAYS * 24
    await app.job_manager.delete_old_jobs(hours, include_failed=True, include_cancelled=True, include_aborted=True)


async def run_pool(
    app: procrastinate.App,
    queue: str,
    concurrency: int,
    stopping: asyncio.Event,
    *,
    grace_seconds: float = SHUTDOWN_SECONDS,
    empty_at_end: bool = False,
    listens: bool = True,
) -> None:
    """Work on one queue until `stopping`, or a little longer to empty it; outlive outages of Postgres.

    Jobs that take longer than the grace are queued again. Who `listens` hears of a new job at once, for a connection;
    else it is found within POLL_SECONDS.
    """
    failures = 0
    while not stopping.is_set():
        try:
            worker = _worker_on(app, queue, concurrency, grace_seconds, listens=listens)
            working = asyncio.create_task(worker.run())
            stop = asyncio.create_task(stopping.wait())
            try:
                await asyncio.wait({working, stop}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stop.cancel()
                await _end(worker, working, grace_seconds)
            failures = 0
        except Exception as problem:  # noqa: BLE001 - an error of one queue restarts its worker and nothing else
            failures = min(failures + 1, 4)
            if isinstance(problem.__cause__, psycopg.errors.ForeignKeyViolation):
                # Others took the worker for dead while its process was suspended: it takes a job, and its row is gone.
                _log.warning("worker-forgotten", queue=queue)
            else:
                log_failure(f"queue {queue}", problem)
        if not stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(0.5 * 2**failures, 5)):
                    await stopping.wait()
    if empty_at_end:
        with contextlib.suppress(ConnectorException, OSError, TimeoutError):
            async with asyncio.timeout(EMPTYING_SECONDS):
                await _worker_on(app, queue, concurrency, grace_seconds, wait=False).run()


async def run_until_empty(app: procrastinate.App, queue: str) -> None:
    """Do what waits in a queue and what dead workers left there, one job after the other."""
    await retry_stalled_jobs(app, _elsewhere, queue)
    await _worker_on(app, queue, 1, 0, wait=False).run()


def _worker_on(
    app: procrastinate.App,
    queue: str,
    concurrency: int,
    grace_seconds: float,
    *,
    wait: bool = True,
    listens: bool = True,
) -> Worker:
    """Return what works on the queue until it is stopped, or without `wait` until the queue is empty."""
    return Worker(
        app,
        queues=[queue],
        name=queue,
        concurrency=concurrency,
        wait=wait,
        listen_notify=listens,
        install_signal_handlers=False,
        fetch_job_polling_interval=POLL_SECONDS,
        update_heartbeat_interval=HEARTBEAT_SECONDS,
        stalled_worker_timeout=STALLED_AFTER_SECONDS,
        shutdown_graceful_timeout=grace_seconds,
        delete_jobs="successful",
    )


async def _end(worker: Worker, working: asyncio.Task[None], grace_seconds: float) -> None:
    """Stop a worker, which gives its jobs the grace. A database that does not answer holds up nothing for long.

    Until it has registered itself it may wait for a lost database, so it is cancelled as well. A cancellation alone may
    get lost there: `asyncio.wait_for` of Python 3.11 swallows one that meets a result.
    """
    worker.stop()
    if worker.worker_id is None:
        working.cancel()
    ended, _ = await asyncio.wait({working}, timeout=grace_seconds + ENDING_SECONDS)
    if not ended:
        working.cancel()
        ended, _ = await asyncio.wait({working}, timeout=ENDING_SECONDS)
    if not ended:
        _log.warning("worker-not-ended", queues=worker.queues)
    elif not working.cancelled():
        working.result()


async def retry_stalled_jobs(
    app: procrastinate.App, stalled: Callable[[str, int], Awaitable[None]], queue: str | None = None
) -> int:
    """Queue the jobs of dead workers again, except chores, whose time comes again; return how many there were.

    `stalled` hears of each delivery among them, and of its job. Where it ends the delivery, the job does nothing.
    """
    manager = app.job_manager
    jobs = await manager.get_stalled_jobs(queue=queue, seconds_since_heartbeat=STALLED_AFTER_SECONDS)
    count = 0
    for job in jobs:
        if job.task_name == CHORE:
            await manager.finish_job(job, engine_jobs.Status.FAILED, delete_job=True)
            continue
        if job.task_name == "decide":
            await stalled(str(job.task_kwargs["guid"]), job.id or 0)
        await manager.retry_job(job)
        count += 1
    return count
