"""The doorbells of nodes: what tells a worker of work, in the transaction that makes it.

Turns wait in our own table; a bell for them is a notification whose payload is the node. Removals and operations are
jobs of the engine, one for each worktree. Both may get lost, so workers also look by themselves (`bot.worker`).
"""

from bot.store.database import Connection

TURN_WAITS = "threadtree_turn_waits"
"""A turn was queued, which matters to a worker with a free place: `requests.ENQUEUE_TURN` rings."""
WORK_WAITS = "threadtree_work_waits"
"""Something no longer holds up a turn: see `ring_for_work`."""
TAKE_OVER_SECONDS = 20.0
"""A process that removes a worktree by itself gets so long before the worktree's job goes on with it."""

RING = f"""
-- A job for each worktree of the node with something to do, unless one waits. What an earlier job of the worktree does
-- now, its lock keeps from the next one.
with jobs as (
    select procrastinate_defer_jobs_v1(array_agg((
        'node:' || node, 'worktree', 0, 'worktree:' || worktree_id, null, jsonb_build_object('worktree', worktree_id),
        null)::procrastinate_job_to_defer_v1)) as ids
    from due_worktrees
    where node = $1
      and not exists (select from procrastinate_jobs j where j.lock = 'worktree:' || worktree_id and j.status = 'todo')
    having count(*) > 0
)
select pg_notify('{WORK_WAITS}', $1), (select ids from jobs)
"""  # noqa: S608 - of constants

DEFER_TAKE_OVER = """
select procrastinate_defer_jobs_v1(array[(
    'node:' || $1, 'worktree', 0, 'worktree:' || $2::bigint, null, jsonb_build_object('worktree', $2::bigint),
    now() + make_interval(secs => $3))::procrastinate_job_to_defer_v1])
"""


def queue_of(node: str) -> str:
    """Return the queue of the node's operations and removals."""
    return f"node:{node}"


async def ring_for_work(connection: Connection, node: str) -> None:
    """Tell the node that something no longer holds up a turn, and enqueue the operations and removals that may begin.

    In the caller's transaction, after its changes.
    """
    await connection.execute(RING, node)


async def take_over_later(connection: Connection, node: str, worktree_id: int) -> None:
    """Enqueue a job that goes on with a removal, should the caller's process die during it."""
    await connection.execute(DEFER_TAKE_OVER, node, worktree_id, TAKE_OVER_SECONDS)
