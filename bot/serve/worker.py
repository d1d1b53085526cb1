"""The parts of a worker: its chores and other jobs, its signs of life, its notifications."""

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import orjson
import procrastinate
import structlog

from bot import counters
from bot.care import upkeep_rows as upkeep
from bot.care.clones import care_for_clones, care_for_new_clones, share_new_worktrees
from bot.care.conflicts import CONFLICTS_SECONDS, tell_of_conflicts
from bot.care.expire import expire
from bot.care.measures_rows import save_counts
from bot.care.on_request_rows import give_up_silent
from bot.care.prune import make_room, prune
from bot.care.removing import try_again
from bot.care.repair import repair
from bot.inbox.recover import Recovery
from bot.node import node_rows as nodes
from bot.node.identity import NodeInUseError, in_use_elsewhere
from bot.node.node_rows import NodeSelf
from bot.node.room import disk_use, kept_directories
from bot.serve.clock import set_clock
from bot.settings import Settings
from bot.store import deliveries, jobs
from bot.store.conversations import delete_old_sessions
from bot.store.database import DATABASE_AWAY, connect
from bot.store.engine import RetryLaterError, defer_chore, delete_old_jobs, retry_stalled_jobs
from bot.store.failures import database_answered, database_failed, is_transient, log_failure, outages
from bot.tasks import concurrently, unless_stopped
from bot.thread import outbox_rows as outbox
from bot.thread.outbox import Sender
from bot.thread.reasons import NODE_SILENT_FOR_OPERATOR
from bot.tree import can_share_blocks
from bot.turn.context import TurnContext
from bot.turn.message_rows import MESSAGE_WAITS
from bot.turn.runner import Runner
from bot.turn.take_over import take_over
from bot.verbs.standing import STANDING_SECONDS, ask_what_is_due

TICK_SECONDS = 3.0
SUSPENDED_SECONDS = 5.0
"""The pause between two looks for sessions of suspended processes."""
DISK_SECONDS = 60.0
DISK_SHARE = 100
"""The pause after a measurement, in times of what it took."""
LISTENER_CHECKED_SECONDS = 15.0
STOP_ASKED = "threadtree_stop"
"""The channel of a trigger: its payload is the turn."""
LONGEST_ROUND_SECONDS = 20.0
USED_UP_SECONDS = 1.0
"""The pause between two looks at what may not be sent for long."""
_log = structlog.get_logger()


Chore = tuple[float, Callable[[], Awaitable[None]]]
"""What a node does every so many seconds, as a job of the engine."""


class Housekeeping:
    """The chores of a node. `delivery_stalled` hears of deliveries whose worker died, and of their jobs."""

    def __init__(
        self,
        ctx: TurnContext,
        node: NodeSelf,
        settings: Settings,
        delivery_stalled: Callable[[str, int], Awaitable[None]],
    ) -> None:
        self._ctx = ctx
        self._node = node
        self._settings = settings
        self._delivery_stalled = delivery_stalled
        self._measured_until = 0.0
        self._at_work: set[str] = set()
        self._outages = outages()
        self._recovery = Recovery(
            *(ctx.pool, ctx.github, settings.platform, ctx.clock, settings.named_repos),
            seldom_seconds=settings.recover_interval_seconds,
            poll_seconds=settings.poll_interval_seconds,
        )

    def chores(self, app: procrastinate.App) -> dict[str, Chore]:
        """Return the chores by their names."""
        sweep, settings = self._settings.sweep_interval_seconds, self._settings
        read_log = settings.poll_interval_seconds or settings.recover_interval_seconds
        sharing: Chore = (min(sweep, DISK_SECONDS), partial(share_new_worktrees, self._ctx))
        of = self._ctx.pool, self._ctx.github, self._ctx.clock
        standing: Chore = (min(sweep, STANDING_SECONDS), partial(ask_what_is_due, *of))
        return {
            "forgotten": (TICK_SECONDS, partial(self._find_forgotten, app)),
            "suspended": (SUSPENDED_SECONDS, partial(upkeep.end_suspended, self._ctx.pool)),
            "sweep": (sweep, partial(self._sweep, app)),
            "new clones": (sweep, partial(care_for_new_clones, self._ctx)),
            "disk": (min(sweep, DISK_SECONDS), self._make_room),
            "measures": (min(sweep, DISK_SECONDS), self._measure_disk),
            "recovery": (read_log, self._recovery.round_if_due),
            "conflicts": (min(sweep, CONFLICTS_SECONDS), self._tell_of_conflicts),
            **({"standing": standing} if settings.standing else {}),
            **({"sharing": sharing} if can_share_blocks(self._settings.data_dir) else {}),
        }

    async def do(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do a chore, unless this process is at it; what fails is logged, and done again when its time comes."""
        if name in self._at_work:
            return
        self._at_work.add(name)
        try:
            await work()
        except asyncio.CancelledError:
            return  # the process ends
        except Exception as problem:  # noqa: BLE001 - an outage of the database only delays housekeeping
            if name == "sweep":
                counters.SWEEPS.labels("failed").inc()
            log_failure(name, problem)
        finally:
            self._at_work.discard(name)

    async def _find_forgotten(self, app: procrastinate.App) -> None:
        """Enqueue again what a lost doorbell or a dead worker left, and what may be tried again."""
        ctx = self._ctx
        counters.RECOVERIES.labels("job").inc(await retry_stalled_jobs(app, self._delivery_stalled))
        async with ctx.pool.acquire() as connection:
            for writer in await outbox.forgotten_writers(connection, ctx.clock()):
                await jobs.ring(connection, writer)
                counters.RECOVERIES.labels("write").inc()
                _log.info("outbox-notified", writer=writer)
            for guid in await deliveries.decide_forgotten(connection):
                counters.RECOVERIES.labels("delivery").inc()
                _log.warning("delivery-forgotten", delivery=guid)
            await delete_old_sessions(connection, self._settings.session_ttl_seconds, ctx.clock())
        if (ended := outages()) != self._outages:
            # Webhooks were refused meanwhile.
            self._outages = ended
            await defer_chore(app, self._node.id, "recovery")
        await try_again(ctx)
        await jobs.ring_for_work(ctx.pool, ctx.node)

    async def _sweep(self, app: procrastinate.App) -> None:
        """Delete what has expired, and pack the clones.

        WORKTREE_PRUNE_ENABLED=false spares worktrees, not rescues, homes and trash.
        """
        ctx, settings, name = self._ctx, self._settings, self._node.name
        async with ctx.pool.acquire() as connection:
            days = settings.delivery_retention_days, settings.step_retention_days, settings.history_retention_days
            await upkeep.delete_old(connection, *(timedelta(days=kept) for kept in days))
        await delete_old_jobs(app)
        await repair(ctx)
        if settings.worktree_prune_enabled:
            report = await prune(ctx, settings.retention)
            counters.WORKTREES_PRUNED.labels(name).inc(len(report.deleted))
            counters.RECLAIMED_BYTES.labels(name).inc(report.bytes_reclaimed)
        else:
            await expire(ctx, settings.retention(ctx.clock()))
        await care_for_clones(ctx, timedelta(days=settings.worktree_orphan_expiry_days))
        counters.SWEEPS.labels("done").inc()

    async def _measure_disk(self) -> None:
        """Measure what takes the space: each minute, but no more than a hundredth of the time."""
        began = time.monotonic()
        if began < self._measured_until:
            return
        kinds = await asyncio.to_thread(disk_use, self._ctx.data_dir)
        kept = await asyncio.to_thread(kept_directories, self._ctx.data_dir)
        await nodes.save_disk(self._ctx.pool, self._node.id, orjson.dumps(kinds).decode())
        await nodes.save_kept(self._ctx.pool, self._node.id, orjson.dumps(kept).decode())
        took = time.monotonic() - began
        self._measured_until = began + min(DISK_SHARE * took, self._settings.sweep_interval_seconds)

    async def _make_room(self) -> None:
        if self._settings.worktree_prune_enabled:
            await make_room(self._ctx)

    async def _tell_of_conflicts(self) -> None:
        await tell_of_conflicts(self._ctx.pool, self._ctx.github, self._ctx.clock)


async def defer_chores(app: procrastinate.App, node: str, chores: Mapping[str, Chore], stopping: asyncio.Event) -> None:
    """Enqueue each chore of the node when its time comes, until `stopping`."""
    async with asyncio.TaskGroup() as group:
        for name, (every_seconds, _) in chores.items():
            defer = partial(defer_chore, app, node, name)
            group.create_task(_repeat(f"defer {name}", defer, every_seconds, stopping))


async def do_job(task: str, work: Callable[[int], Awaitable[None]], number: int) -> None:
    """Do a job of a worktree or of the node. Raises RetryLaterError while the database is away.

    After a bug a worktree's row still says what is to be done, and a further job tries it again.
    """
    try:
        await work(number)
    except Exception as problem:
        if is_transient(problem):
            raise RetryLaterError(2, type(problem).__name__) from problem
        log_failure(task, problem, number=number)


class Pulse:
    """Tells whether the node was heard without a gap for so long that others had the time to be heard too.

    After an outage of the database, and after an upgrade, all nodes look silent at first. A process that starts has
    been heard since its first beat.
    """

    def __init__(self, timeout_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._since = 0.0
        self._last: float | None = None

    def beat(self) -> None:
        """Record that the node was heard now."""
        now = self._clock()
        if self._last is None or now - self._last > self._timeout_seconds:
            self._since = now
        self._last = now

    @property
    def is_steady(self) -> bool:
        now = self._clock()
        return (
            self._last is not None
            and now - self._last <= self._timeout_seconds
            and now - self._since >= self._timeout_seconds
        )


async def keep_alive(
    ctx: TurnContext, node: NodeSelf, runner: Runner, settings: Settings, stopping: asyncio.Event
) -> None:
    """Give signs of life, and look for turns and silent nodes, until `stopping`.

    Raises NodeInUseError, in a group, where a copy of DATA_DIR took the node's id while this process was suspended.
    """
    timeout_seconds = settings.node_timeout_seconds
    pulse = Pulse(timeout_seconds)

    async def beat() -> None:
        async with ctx.pool.acquire(timeout=3 * TICK_SECONDS) as connection:
            if not await nodes.heartbeat(connection, node, timeout_seconds, draining=runner.draining):
                raise in_use_elsewhere(node)
            await set_clock(connection, ctx.clock)
        pulse.beat()

    async def tick() -> None:
        await runner.recover()
        if not runner.draining and pulse.is_steady:
            await take_over(ctx, runner.worktrees, timeout_seconds)
            for asked in await give_up_silent(ctx.pool, timeout_seconds, *NODE_SILENT_FOR_OPERATOR):
                _log.warning("operation-not-answered", operation=asked)
        runner.ring()
        counters.DISK_FREE_BYTES.labels(node.name).set(shutil.disk_usage(ctx.data_dir).free)
        await save_counts(ctx.pool)
        database_answered()

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_repeat("heartbeat", beat, TICK_SECONDS, stopping))
            group.create_task(_repeat("tick", tick, TICK_SECONDS, stopping))
    finally:
        await save_counts(ctx.pool)


async def _repeat(name: str, work: Callable[[], Awaitable[None]], seconds: float, stopping: asyncio.Event) -> None:
    """Do `work` every `seconds` until `stopping`. A failure does not stop the next round."""
    while not stopping.is_set():
        try:
            await work()
        except NodeInUseError:
            raise
        except Exception as problem:  # noqa: BLE001 - an outage of the database only delays the next round
            log_failure(name, problem)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await stopping.wait()


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
    try:
        while True:
            try:
                await app.open_async()
                break
            except Exception as problem:
                if not is_transient(problem):
                    raise
                database_failed(problem, task="engine")
                await app.close_async()  # a pool whose opening failed never works
                await asyncio.sleep(1)
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
        elif channel == MESSAGE_WAITS:
            runner.message_waits(int(payload))
        elif payload == node and channel == jobs.TURN_WAITS:
            runner.ring_for_turn()
        elif payload == node:
            runner.ring()

    lost = asyncio.Event()
    connection = await connect(dsn)
    try:
        connection.add_termination_listener(lambda _: lost.set())
        for channel in (STOP_ASKED, MESSAGE_WAITS, jobs.TURN_WAITS, jobs.WORK_WAITS):
            await connection.add_listener(channel, hear)
        runner.ring()  # for what rang before
        async with concurrently(unless_stopped(stopping, lost.wait())) as ended:
            while not (await asyncio.wait({ended}, timeout=LISTENER_CHECKED_SECONDS))[0]:
                # A connection that has fallen silent tells nothing, and is not lost.
                await connection.execute("select 1", timeout=TICK_SECONDS)
    finally:
        with contextlib.suppress(*DATABASE_AWAY):
            await connection.close(timeout=2)
