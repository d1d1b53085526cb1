"""A turn of a thread whose worktree went with work in it: what was rescued then comes back before the turn begins."""

from bot.handlers.context import RequestContext
from bot.store import operations, rescues, worktrees
from bot.store.requests import NewTurn


async def queue(ctx: RequestContext, request: NewTurn) -> None:
    """Queues the turn, in the worktree that held the rescued work where there is such work."""
    connection, conversation_id = ctx.connection, ctx.thread_ref.conversation_id
    rescue = await rescues.to_bring_back(connection, conversation_id)
    if rescue is not None and await worktrees.revive(connection, rescue.worktree_id):
        await worktrees.rejoin(connection, rescue.worktree_id, rescue.conversations)
    # Of a removal that goes on at this moment it is not known yet whether it finds something to rescue.
    going = await worktrees.is_being_removed(connection, conversation_id)
    await ctx.queue(request)
    if rescue is not None or going:
        await operations.restore_before_newest_turn(connection, conversation_id)
