"""The loops of a worker beside its job queues: housekeeping, rounds of the outbox, notifications."""

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import procrastinate
import structlog
from procrastinate.exceptions import ConnectorException

from bot import counters
from bot.maintenance.clones import care_for_clones, keep_all_spares
from bot.maintenance.expire import expire
from bot.maintenance.prune import prune
from bot.maintenance.repair import repair
from bot.maintenance.room import make_room
from bot.node.identity import NodeInUseError, in_use_elsewhere
from bot.node.process_lock import is_alive
from bot.node.room import disk_use, kept_directories
from bot.operations import parcels
from bot.receive.recover import recover
from bot.reply.outbox import Sender
from bot.run.context import TurnContext
from bot.run.runner import Runner
from bot.run.take_over import take_over
from bot.settings import Settings
from bot.store import deliveries, doorbell, nodes, outbox, upkeep
from bot.store.database import CONNECT_TIMEOUT_SECONDS, DATABASE_AWAY
from bot.store.engine import RetryLaterError, requeue_stalled_jobs
from bot.store.failures import log_failure
from bot.store.measures import save_counts
from bot.store.nodes import NodeSelf
from bot.store.outage import database_answered, database_failed
from bot.store.retention import delete_old_sessions

TICK_SECONDS = 3.0
SUSPENDED_SECONDS = 5.0
"""The pause between two looks for sessions of suspended processes."""
DISK_SECONDS = 60.0
DISK_SHARE = 100
"""The pause after a measurement, in times of what it took."""
STOP_ASKED = "threadtree_stop"
"""The channel of a trigger: its payload is the turn."""
LONGEST_ROUND_SECONDS = 20.0
USED_UP_SECONDS = 1.0
"""The pause between two looks at what may not be sent for long."""
_log = structlog.get_logger()


async def keep_house(
    ctx: TurnContext,
    node: NodeSelf,
    app: procrastinate.App,
    runner: Runner,
    give_up: Callable[[str, int], Awaitable[None]],
    settings: Settings,
    stopping: asyncio.Event,
) -> None:
    """Tick and sweep until `stopping`. A sweep that still runs then is cancelled. `give_up` ends a delivery.

    Raises NodeInUseError where a copy of DATA_DIR has taken the node's id while this process was suspended.
    """

    pause = settings.sweep_interval_seconds

    async def tick() -> None:
        """Give a sign of life; find stalled jobs, cut-off turns, lost doorbells and ended sessions."""
        async with ctx.pool.acquire() as connection:
            timeout = settings.node_timeout_seconds
            if not await nodes.heartbeat(connection, node, timeout, draining=runner.draining):
                raise in_use_elsewhere(node)
            for writer in await outbox.ring_forgotten(connection, ctx.clock()):
                counters.count("recoveries_total", "write")
                _log.info("outbox-rung", writer=writer)
            for guid in await deliveries.decide_forgotten(connection):
                counters.count("recoveries_total", "delivery")
                _log.warning("delivery-forgotten", delivery=guid)
            await delete_old_sessions(connection, settings.session_ttl_seconds, ctx.clock())
        stalled, given_up = await requeue_stalled_jobs(app, ctx.node, partial(is_alive, ctx.workers))
        counters.count("recoveries_total", "job", stalled)
        for guid, job_id in given_up:
            await give_up(guid, job_id)
        await runner.recover()
        if not runner.draining:
            await take_over(ctx, runner.worktrees, settings.node_timeout_seconds)
        runner.ring()
        counters.note("disk_free_bytes", node.name, shutil.disk_usage(ctx.data_dir).free)
        await save_counts(ctx.pool)
        database_answered()

    async def sweep() -> None:
        """Delete what has expired, and pack the clones.

        WORKTREE_PRUNE_ENABLED=false spares worktrees, not rescues, homes and trash.
        """
        async with ctx.pool.acquire() as connection:
            bodies, history = settings.delivery_retention_days, settings.history_retention_days
            await upkeep.delete_old(connection, timedelta(days=bodies), timedelta(days=history))
        await repair(ctx)
        policy = settings.retention(ctx.clock())
        if settings.worktree_prune_enabled:
            report = await prune(ctx, policy)
            counters.count("worktrees_pruned_total", node.name, len(report.deleted))
            counters.count("reclaimed_bytes_total", node.name, report.bytes_reclaimed)
        else:
            await expire(ctx, policy)
        unused = timedelta(days=settings.worktree_orphan_expiry_days)
        await care_for_clones(ctx, unused)
        counters.count("sweeps_total", "done")

    async def end_suspended() -> None:
        # Beside the tick, which may be what waits for the locks.
        async with ctx.pool.acquire() as connection:
            await upkeep.end_suspended(connection)

    measured_until = 0.0

    async def measure_disk() -> None:
        """Measure what takes the space: each minute, but no more than a hundredth of the time."""
        nonlocal measured_until
        began = time.monotonic()
        if began < measured_until:
            return
        kinds = await asyncio.to_thread(disk_use, ctx.data_dir)
        kept = await asyncio.to_thread(kept_directories, ctx.data_dir)
        async with ctx.pool.acquire() as connection:
            await nodes.save_disk(connection, node.id, kinds)
            await nodes.save_kept(connection, node.id, kept)
        took = time.monotonic() - began
        measured_until = began + min(DISK_SHARE * took, pause)

    counted: dict[Path, tuple[str, int]] = {}

    async def watch_disk() -> None:
        """Keep spares while there is room for them; make room where new worktrees have none."""
        await keep_all_spares(ctx, settings.worktree_spares, counted)
        if settings.worktree_prune_enabled:
            await make_room(ctx)

    async def fetch_missed() -> None:
        """Fetch the deliveries that were missed while nothing listened."""
        await recover(ctx.pool, ctx.github, settings.platform, ctx.policy, ctx.clock())

    beside = asyncio.gather(
        _repeat("parcels", partial(parcels.send, ctx), TICK_SECONDS, stopping),
        _repeat("suspended", end_suspended, SUSPENDED_SECONDS, stopping),
        _repeat("sweep", sweep, pause, stopping),
        _repeat("disk", watch_disk, min(pause, DISK_SECONDS), stopping),
        _repeat("measures", measure_disk, min(pause, DISK_SECONDS), stopping),
        _repeat("recovery", fetch_missed, settings.recover_interval_seconds, stopping),
    )
    try:
        await _repeat("tick", tick, TICK_SECONDS, stopping)
    finally:
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)
        await save_counts(ctx.pool)


async def _repeat(name: str, work: Callable[[], Awaitable[None]], seconds: float, stopping: asyncio.Event) -> None:
    """Do `work` every `seconds` until `stopping`. A failure does not stop the next round."""
    while not stopping.is_set():
        try:
            await work()
        except NodeInUseError:
            raise
        except Exception as problem:  # noqa: BLE001 - an outage of the database only delays housekeeping
            if name == "sweep":
                counters.count("sweeps_total", "failed")
            log_failure(name, problem)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), timeout=seconds)


async def send_due(sender: Sender, writer: str) -> None:
    """Send what is due now or soon. What is due later is left to housekeeping: a waiting job would block the writer.

    So is a writer that GitHub's limit pauses: it would take the place of others.
    """
    try:
        while (drained := await sender.drain(writer)).next_due is not None:
            wait = (drained.next_due - sender.clock()).total_seconds()
            if wait > LONGEST_ROUND_SECONDS or drained.paused:
                if drained.used_up:
                    # Each request rings, and each look reads all that waits.
                    await sender.sleep(USED_UP_SECONDS)
                return
            # Short, because something more urgent may come meanwhile.
            await sender.sleep(min(max(wait, 0.05), 1.0))
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
            database_failed(problem, task="engine")
            await asyncio.sleep(1)
    try:
        yield
    finally:
        await app.close_async()


async def listen(dsn: str, node: str, runner: Runner, stopping: asyncio.Event) -> None:
    """Tell the runner which running turns are to stop, and when its node's doorbells ring.

    A lost notification only delays: a run looks at its own row too, and each tick rings.
    """
    while not stopping.is_set():
        try:
            await _listen_until_lost(dsn, node, runner, stopping)
        except Exception as problem:  # noqa: BLE001 - any error of one connection only restarts the listener
            log_failure("notifications", problem)
            await asyncio.sleep(1)


async def _listen_until_lost(dsn: str, node: str, runner: Runner, stopping: asyncio.Event) -> None:
    def hear(*message: Any) -> None:
        _, _, channel, payload = message
        if channel == STOP_ASKED:
            runner.stop_asked(int(payload))
        elif payload == node and channel == doorbell.TURN_WAITS:
            runner.ring_for_turn()
        elif payload == node:
            runner.ring()

    lost = asyncio.Event()
    connection = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_SECONDS)
    try:
        connection.add_termination_listener(lambda _: lost.set())
        for channel in (STOP_ASKED, doorbell.TURN_WAITS, doorbell.WORK_WAITS):
            await connection.add_listener(channel, hear)
        runner.ring()  # for what rang before
        waits = [asyncio.create_task(event.wait()) for event in (lost, stopping)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    finally:
        with contextlib.suppress(*DATABASE_AWAY):
            await connection.close(timeout=2)
