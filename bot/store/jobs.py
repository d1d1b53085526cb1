"""What tells a worker of work, in the transaction that makes it: jobs for the queue engine, and notifications.

A writer's doorbell is a job that carries no work: it only tells that some row of the outbox waits. Decided
removals are jobs too, one for each worktree. Turns wait in our own table; a bell for them is a notification whose
payload is the node. Each may get lost, so workers also look by themselves (`bot.serve.worker`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from bot.store.database import Connection, statement

OUTBOX = "outbox"
"""The task of a writer's doorbell, its queue, and the beginning of its lock."""

TURN_WAITS = "threadtree_turn_waits"
"""A turn was queued, which matters to a worker with a free place: `turn.request_rows.enqueue` rings."""
WORK_WAITS = "threadtree_work_waits"
"""Something no longer holds up a turn: see `ring_for_work`."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job; those with the same `lock` run one at a time, in the order in which they were enqueued.

    `args` are the task's keyword arguments, as JSON knows them.
    """

    queue: str
    task: str
    lock: str | None
    args: dict[str, object]
    after_seconds: float | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What the engine is given."""
        return self.queue, self.task, self.lock, orjson.dumps(self.args).decode(), self.after_seconds


def outbox_bell(writer: str) -> NewJob:
    """Return the doorbell for a writer that has something to send; the lock makes its writes serial."""
    return NewJob(queue=OUTBOX, task=OUTBOX, lock=f"{OUTBOX}:{writer}", args={"writer": writer})


@statement("""
-- Job ids are assigned at insert, not at commit: without this lock, the one of two transactions that
-- commits last could hold the lower id. Ordered by hash, so that groups of locks cannot wait for each other.
select pg_advisory_xact_lock(hash)
from (select distinct hashtextextended(lock, 0) as hash from unnest($1::text[]) as lock order by hash) as hashes
""")
async def lock_queues(connection: Connection, locks: Sequence[str]) -> None:
    """Make transactions that enqueue jobs for the same locks wait for each other's end.

    Comes first in the transaction: taken after rows are locked it could deadlock.
    """


async def ring(connection: Connection, writer: str) -> None:
    """Enqueue the writer's doorbell, in the caller's transaction, unless one waits already.

    Otherwise each row of a burst, or of hours without a worker, would leave a job of its own. The one that waits may
    end before this transaction does: a row that nobody rang for is found by `bot.thread.outbox_rows.forgotten_writers`.
    """
    bell = outbox_bell(writer)
    bell_waits = "select exists (select from procrastinate_jobs where lock = $1 and status = 'todo')"
    if not await connection.fetchval(bell_waits, bell.lock):
        await defer(connection, bell)


@statement("""
select procrastinate_defer_jobs_v1(array[(
    $1, $2, 0, $3, null, $4::text::jsonb, now() + make_interval(secs => $5))::procrastinate_job_to_defer_v1])
""")
async def defer(connection: Connection, job: NewJob) -> None:
    """Enqueue a job in the caller's transaction; where it has a lock, `lock_queues` comes before."""


def chore(node: str, name: str) -> NewJob:
    """Return the job of a chore (see `bot.serve.worker`) that is due before its time."""
    return NewJob(f"chores:{node}", "chore", None, {"name": name})


def queue_of(node: str) -> str:
    """Return the queue of the node's removals, and of what is asked of it as a whole."""
    return f"node:{node}"


@statement(f"""
-- A job for each worktree of the node whose removal is decided, unless one waits. What an earlier job of the worktree
-- does now, its lock keeps from the next one.
with jobs as (
    select procrastinate_defer_jobs_v1(array_agg((
        'node:' || node, 'worktree', 0, 'worktree:' || id, null, jsonb_build_object('worktree', id),
        null)::procrastinate_job_to_defer_v1)) as ids
    from worktrees
    where node = $1 and state = 'removing'
      and not exists (select from procrastinate_jobs j where j.lock = 'worktree:' || id and j.status = 'todo')
    having count(*) > 0
)
select pg_notify('{WORK_WAITS}', $1), (select ids from jobs)
""")  # noqa: S608 - of constants
async def ring_for_work(connection: Connection, node: str) -> None:
    """Tell the node that something no longer holds up a turn, and enqueue the removals that are decided.

    In the caller's transaction, after its changes.
    """
