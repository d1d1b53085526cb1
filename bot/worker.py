"""The loops of a worker beside its job queues: housekeeping, rounds of the outbox, news of stop requests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import asyncpg
import procrastinate
import structlog
from procrastinate.exceptions import ConnectorException

from bot.maintenance.expire import expire
from bot.maintenance.prune import prune
from bot.maintenance.repair import repair
from bot.maintenance.retention_rules import policy_for
from bot.node.context import NodeContext
from bot.node.process_lock import worker_lock
from bot.reply.outbox import Sender
from bot.run.runner import Runner
from bot.settings import Settings
from bot.store import upkeep
from bot.store.database import CONNECT_TIMEOUT_SECONDS, DATABASE_AWAY, log_failure
from bot.store.engine import RetryLaterError, retry_stalled_jobs
from bot.store.retention import delete_old_sessions

TICK_SECONDS = 3.0
LONGEST_ROUND_SECONDS = 20.0
_log = structlog.get_logger()


class Housekeeper:
    """Every TICK_SECONDS: heartbeat, cut-off turns, lost doorbells, stalled jobs, ended sessions.

    Every SWEEP_INTERVAL_SECONDS, in a task of its own: repair, prune and deletion of old rows.
    """

    def __init__(
        self,
        ctx: NodeContext,
        app: procrastinate.App,
        runner: Runner,
        settings: Settings,
    ) -> None:
        self._ctx = ctx
        self._pool = ctx.pool
        self._app = app
        self._runner = runner
        self._settings = settings
        self._clock = ctx.clock
        self._cleaning: asyncio.Task[None] | None = None

    async def keep(self, stopping: asyncio.Event) -> None:
        """Run until `stopping`. An outage of the database only delays it."""
        loop = asyncio.get_running_loop()
        clean_at = loop.time()
        try:
            while not stopping.is_set():
                try:
                    await self._tick()
                    if loop.time() >= clean_at and self._cleaning is None:
                        clean_at = loop.time() + self._settings.sweep_interval_seconds
                        self._cleaning = asyncio.create_task(self._clean(), name="sweep")
                        self._cleaning.add_done_callback(self._cleaned)
                except Exception as problem:  # noqa: BLE001 - the next tick comes whatever this one met
                    log_failure("tick", problem)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), timeout=TICK_SECONDS)
        finally:
            if self._cleaning is not None:
                self._cleaning.cancel()
                await asyncio.gather(self._cleaning, return_exceptions=True)

    async def _tick(self) -> None:
        async with self._pool.acquire() as connection:
            await upkeep.heartbeat(connection, self._settings.node_name)
            for writer in await upkeep.ring_forgotten_writers(connection, self._clock()):
                _log.info("outbox-rung", writer=writer)
            for guid in await upkeep.decide_forgotten_deliveries(connection):
                _log.warning("delivery-forgotten", delivery=guid)
            await delete_old_sessions(connection, self._settings.session_ttl_seconds, self._clock())
        await self._runner.recover()
        self._runner.ring()
        await retry_stalled_jobs(self._app)

    async def _clean(self) -> None:
        """Delete what has expired. WORKTREE_PRUNE_ENABLED=false spares the worktrees, not rescues, homes and trash."""
        settings, ctx = self._settings, self._ctx
        async with self._pool.acquire() as connection:
            await upkeep.delete_old(connection, timedelta(days=settings.delivery_retention_days))
        await repair(ctx)
        policy = policy_for(
            self._clock(),
            detached_days=settings.worktree_headless_expiry_days,
            branch_days=settings.worktree_branch_expiry_days,
            orphan_days=settings.worktree_orphan_expiry_days,
            rescue_days=settings.rescue_expiry_days,
        )
        if not settings.worktree_prune_enabled:
            await expire(ctx, policy)
            return
        with worker_lock(ctx.workers) as worker:
            await prune(ctx, policy, worker)

    def _cleaned(self, task: asyncio.Task[None]) -> None:
        self._cleaning = None
        if task.cancelled() or (problem := task.exception()) is None:
            return
        log_failure("sweep", problem)


class OutboxRounds:
    """What an outbox job does: it sends what is due or soon will be, while it holds the writer's lock."""

    def __init__(
        self, sender: Sender, clock: Callable[[], datetime], sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self._sender = sender
        self._clock = clock
        self._sleep = sleep

    async def go(self, writer: str) -> None:
        """Send what is due. What is due later is left to housekeeping: a job that waits would block the writer."""
        try:
            while True:
                drained = await self._sender.drain(writer)
                if drained.next_due is None:
                    return
                wait = (drained.next_due - self._clock()).total_seconds()
                if wait > LONGEST_ROUND_SECONDS:
                    return
                # Short, because something more urgent may come meanwhile.
                await self._sleep(min(max(wait, 0.05), 1.0))
        except DATABASE_AWAY as problem:
            raise RetryLaterError(2, type(problem).__name__) from problem


@asynccontextmanager
async def open_engine(app: procrastinate.App) -> AsyncIterator[None]:
    """Open the job engine. Wait for a database that is starting."""
    while True:
        try:
            await app.open_async()
            break
        except (ConnectorException, OSError) as problem:
            _log.warning("engine-waits-for-database", problem=type(problem).__name__)
            await asyncio.sleep(1)
    try:
        yield
    finally:
        await app.close_async()


async def listen_for_stops(dsn: str, stop_asked: Callable[[int], None], stopping: asyncio.Event) -> None:
    """Pass on which running turns are to stop. A run looks at its own row too, so a lost notification only delays."""
    while not stopping.is_set():
        try:
            await _listen_until_lost(dsn, stop_asked, stopping)
        except Exception as problem:  # noqa: BLE001 - listening goes on whatever one connection meets
            log_failure("stop-notifications", problem)
            await asyncio.sleep(1)


async def _listen_until_lost(dsn: str, stop_asked: Callable[[int], None], stopping: asyncio.Event) -> None:
    lost = asyncio.Event()
    connection = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_SECONDS)
    try:
        connection.add_termination_listener(lambda _: lost.set())
        await connection.add_listener("threadtree_stop", lambda *news: stop_asked(int(news[3])))
        waits = [asyncio.create_task(event.wait()) for event in (lost, stopping)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    finally:
        with contextlib.suppress(*DATABASE_AWAY):
            await connection.close(timeout=2)
