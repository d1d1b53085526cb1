"""Take-over between nodes on one database (DESIGN.md §4, nodes), in each tick of a worker."""

import structlog

from bot.handlers.choose_worktree import choose_node
from bot.messages import notices
from bot.run.context import TurnContext
from bot.run.runner import interrupt
from bot.store import claims, nodes, takeover, turns

_log = structlog.get_logger()


async def take_over(ctx: TurnContext, busy: list[int], timeout_seconds: float) -> None:
    """Move requests that wait for a silent node, and let go of this node's lost worktrees, except the `busy` ones."""
    async with ctx.pool.acquire() as connection:
        for worktree in await takeover.let_go(connection, ctx.node, busy):
            _log.warning("lost-worktree-let-go", worktree=worktree)
        stranded = await takeover.stranded(connection, timeout_seconds)
    for worktree, node in stranded:
        if node != ctx.node:
            await _move(ctx, worktree, node, timeout_seconds)


async def _move(ctx: TurnContext, worktree: int, node: str, timeout_seconds: float) -> None:
    """Move what waits in one worktree, unless its node is back. Its processes claim nothing meanwhile."""
    async with ctx.pool.acquire() as connection, claims.claims_of_node(connection, node):
        found = await takeover.lock_stranded(connection, worktree, timeout_seconds)
        if found is None:
            return
        for claim in found.running:
            if not await turns.requeue(connection, claim, crashed=True):
                await interrupt(connection, claim, ctx)
        to = choose_node(ctx.node, await nodes.live_nodes(connection, timeout_seconds))
        moved = await takeover.move_waiting(connection, worktree, to, notices.taken_over(found.node_name))
    _log.warning("node-taken-over", node=node, name=found.node_name, worktree=worktree, to=to, now=moved)
