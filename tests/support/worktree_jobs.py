"""The jobs of worktrees, done by a test instead of a worker."""

from bot.care import removal_rows as removals
from bot.care.removal_rows import DecidedRemoval, Removal
from bot.care.removing import remove_decided, try_again
from bot.node.context import NodeContext
from bot.store.database import Connection

NOT_BEGUN = """
select id from worktrees where node = $1 and state = 'removing' and not removal_began order by id limit 1
"""


async def begin_removal(db: Connection, node: str) -> DecidedRemoval | None:
    """Begin the oldest removal of the node that no process has begun."""
    due = await db.fetchval(NOT_BEGUN, node)
    return None if due is None else await removals.begin(db, node, due)


async def decide_and_begin(
    db: Connection, node: str, worktree: int, why: Removal, turn: int | None = None
) -> DecidedRemoval | None:
    """Decide a removal and begin it, None while something needs the worktree."""
    if not await removals.decide(db, node, worktree, why, turn):
        return None
    return await removals.begin(db, node, worktree)


async def remove_all(ctx: NodeContext) -> None:
    """Do the removals of the node, each once, as its worker's jobs."""
    await try_again(ctx)
    async with ctx.pool.acquire() as connection:
        rows = await connection.fetch("select id from worktrees where node = $1 and state = 'removing'", ctx.node)
    for row in rows:
        await remove_decided(ctx, row["id"])
