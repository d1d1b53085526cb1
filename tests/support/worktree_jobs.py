"""The jobs of worktrees, done by a test instead of a worker."""

from bot.node.context import NodeContext
from bot.operations.execute import work_in
from bot.operations.remove import remove_decided, try_again
from bot.store import operations, removals
from bot.store.database import Connection
from bot.store.operations import Operation
from bot.store.removals import DecidedRemoval, Removal

QUEUED = """
select d.worktree_id from due_operations d join operations o on o.id = d.id
where d.node = $1 and o.state = 'queued' and d.worktree_id = coalesce($2, d.worktree_id) order by d.id limit 1
"""

NOT_BEGUN = """
select id from worktrees where node = $1 and state = 'removing' and not removal_began order by id limit 1
"""


async def begin_operation(db: Connection, node: str, worktree: int | None = None) -> Operation | None:
    """Begin the oldest operation of the node, or of one worktree, that no process has begun."""
    due = await db.fetchval(QUEUED, node, worktree)
    return None if due is None else await operations.begin(db, node, due)


async def begin_removal(db: Connection, node: str) -> DecidedRemoval | None:
    """Begin the oldest removal of the node that no process has begun."""
    due = await db.fetchval(NOT_BEGUN, node)
    return None if due is None else await removals.begin(db, node, due)


async def decide_and_begin(
    db: Connection, node: str, worktree: int, why: Removal, operation: int | None = None
) -> DecidedRemoval | None:
    """Decide a removal and begin it, None while something needs the worktree."""
    if not await removals.decide(db, node, worktree, why, operation):
        return None
    return await removals.begin(db, node, worktree)


async def remove_all(ctx: NodeContext) -> None:
    """Do the removals of the node, each once, as its worker's jobs."""
    await try_again(ctx)
    async with ctx.pool.acquire() as connection:
        rows = await connection.fetch("select id from worktrees where node = $1 and state = 'removing'", ctx.node)
    for row in rows:
        await remove_decided(ctx, row["id"])


async def do_all(ctx: NodeContext) -> None:
    """Do what waits in the worktrees of the node, as its worker's jobs."""
    async with ctx.pool.acquire() as connection:
        rows = await connection.fetch("select worktree_id from due_worktrees where node = $1", ctx.node)
    for row in rows:
        await work_in(ctx, row["worktree_id"])
