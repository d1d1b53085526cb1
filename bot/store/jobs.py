"""Jobs for the queue engine, put in by our own transactions: a row and the job for it are committed together."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

import orjson

from bot.store.database import Connection

TAKE_TURNS = """
-- Job ids are given at insert and not at commit: without this, of two transactions for one lock the one that
-- commits last could hold the lower id. Ordered by hash, so that groups of locks cannot wait for each other.
select pg_advisory_xact_lock(hash)
from (select distinct hashtextextended(lock, 0) as hash from unnest($1::text[]) as lock order by hash) as hashes
"""

DEFER = """
-- The engine's own function; ids ascend in the order given.
select procrastinate_defer_jobs_v1(array_agg(
    (queue, task, priority, lock, null, args, scheduled_at)::procrastinate_job_to_defer_v1 order by place))
from unnest($1::text[], $2::text[], $3::integer[], $4::text[], $5::jsonb[], $6::timestamptz[]) with ordinality
     as jobs (queue, task, priority, lock, args, scheduled_at, place)
"""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be done; those with the same `lock` run one at a time in the order they were put in.

    `args` are the task's keyword arguments, as JSON knows them. A higher `priority` goes first.
    """

    queue: str
    task: str
    lock: str | None
    args: dict[str, object] = field(default_factory=dict)
    scheduled_at: datetime | None = None
    priority: int = 0


async def take_turns(connection: Connection, locks: Iterable[str]) -> None:
    """Makes transactions that put in jobs for the same locks wait for each other's end.

    Comes first in the transaction: taken after rows are locked it could deadlock.
    """
    await connection.execute(TAKE_TURNS, sorted(set(locks)))


async def defer(connection: Connection, *jobs: NewJob) -> None:
    """Puts `jobs` in with the caller's transaction; where they have locks, `take_turns` comes before."""
    if not jobs:
        return
    await connection.execute(
        DEFER,
        [job.queue for job in jobs],
        [job.task for job in jobs],
        [job.priority for job in jobs],
        [job.lock for job in jobs],
        [orjson.dumps(job.args).decode() for job in jobs],
        [job.scheduled_at for job in jobs],
    )
