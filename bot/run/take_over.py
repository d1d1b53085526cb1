"""Take-over between nodes on one database (DESIGN.md §4, nodes), in each tick of a worker."""

import structlog

from bot.handlers.choose_worktree import choose_node
from bot.messages import notices, worktree_replies
from bot.messages.formatting import plain
from bot.reply import thread_comments
from bot.run.context import TurnContext
from bot.run.runner import interrupt
from bot.store import claims, nodes, operations, takeover, turns

_log = structlog.get_logger()


async def take_over(ctx: TurnContext, busy: list[int], timeout_seconds: float) -> None:
    """Move requests that wait for a silent node, and end its operations with an answer.

    Of this node, let go of the lost worktrees, except the `busy` ones.
    """
    async with ctx.pool.acquire() as connection:
        for worktree in await takeover.let_go(connection, ctx.node, busy):
            _log.warning("lost-worktree-let-go", worktree=worktree)
        stranded = await takeover.stranded(connection, timeout_seconds)
    for worktree, node in stranded:
        if node != ctx.node:
            await _move(ctx, worktree, node, timeout_seconds)
    async with ctx.pool.acquire() as connection, connection.transaction():
        for asked in await takeover.unanswered(connection, timeout_seconds):
            words = worktree_replies.node_silent(asked.kind, asked.node_name)
            await operations.abandon(connection, asked.id, plain(words))
            await thread_comments.reply(connection, asked.thread_ref, asked.target, words, instead_of=asked.reply_id)
            _log.warning("operation-not-answered", operation=asked.id, name=asked.node_name)


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
