"""Jobs for the queue engine, enqueued by our own transactions: a row and the job for it are committed together.

A writer's doorbell is a job that carries no work: it only tells that some row of the outbox waits.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import orjson

from bot.store.database import Connection

LOCK_QUEUES = """
-- Job ids are assigned at insert, not at commit: without this lock, the one of two transactions that
-- commits last could hold the lower id. Ordered by hash, so that groups of locks cannot wait for each other.
select pg_advisory_xact_lock(hash)
from (select distinct hashtextextended(lock, 0) as hash from unnest($1::text[]) as lock order by hash) as hashes
"""

DEFER = """
-- The engine's own function; ids ascend in the given order.
select procrastinate_defer_jobs_v1(array_agg(
    (queue, task, 0, lock, null, args, null)::procrastinate_job_to_defer_v1 order by place))
from unnest($1::text[], $2::text[], $3::text[], $4::jsonb[]) with ordinality as jobs (queue, task, lock, args, place)
"""

OUTBOX = "outbox"
"""The task of a writer's doorbell, its queue, and the beginning of its lock."""

BELL_WAITS = """
select exists (select from procrastinate_jobs where lock = $1 and status = 'todo')
"""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job; those with the same `lock` run one at a time, in the order in which they were enqueued.

    `args` are the task's keyword arguments, as JSON knows them.
    """

    queue: str
    task: str
    lock: str | None
    args: dict[str, object] = field(default_factory=dict)


def outbox_bell(writer: str) -> NewJob:
    """Return the doorbell for a writer that has something to send; the lock makes its writes serial."""
    return NewJob(queue=OUTBOX, task=OUTBOX, lock=f"{OUTBOX}:{writer}", args={"writer": writer})


async def lock_queues(connection: Connection, locks: Iterable[str]) -> None:
    """Make transactions that enqueue jobs for the same locks wait for each other's end.

    Comes first in the transaction: taken after rows are locked it could deadlock.
    """
    await connection.execute(LOCK_QUEUES, sorted(set(locks)))


async def ring(connection: Connection, writer: str) -> None:
    """Enqueue the writer's doorbell, in the caller's transaction, unless one waits already.

    Otherwise each row of a burst, or of hours without a worker, would leave a job of its own. The one that waits may
    end before this transaction does: a row that nobody rang for is found by `bot.store.outbox.ring_forgotten`.
    """
    bell = outbox_bell(writer)
    if not await connection.fetchval(BELL_WAITS, bell.lock):
        await defer(connection, bell)


async def defer(connection: Connection, *jobs: NewJob) -> None:
    """Enqueue jobs in the caller's transaction; where they have locks, `lock_queues` comes before."""
    if not jobs:
        return
    await connection.execute(
        DEFER,
        [job.queue for job in jobs],
        [job.task for job in jobs],
        [job.lock for job in jobs],
        [orjson.dumps(job.args).decode() for job in jobs],
    )
