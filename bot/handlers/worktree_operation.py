"""Operations on a conversation's worktree that its node carries out: reset, remove, restore."""

from typing import Literal

from bot.handlers.context import RequestContext
from bot.messages import worktree_replies
from bot.store import conversations, operations, rescues, worktrees
from bot.store.operations import RequestedBy


async def queue_operation(ctx: RequestContext, kind: Literal["reset", "remove", "restore"]) -> None:
    """Queue the operation for the node that has the worktree, or reply why there is nothing to do."""
    connection, conversation_id = ctx.connection, ctx.conversation_id
    own = await conversations.worktree_of(connection, conversation_id)
    live = await conversations.live_worktree(connection, own) if own is not None else None
    worktree_id = live.id if live else None
    if kind == "restore":
        found = await _worktree_to_restore_in(ctx, worktree_id)
        if isinstance(found, str):
            await ctx.reply(found)
            return
        worktree_id = found
    if worktree_id is None:
        await ctx.reply(worktree_replies.no_worktree(kind))
        return
    asker = RequestedBy(ctx.author.login, ctx.asked_at, conversation_id, ctx.target)
    operation_id = await operations.enqueue(connection, worktree_id, kind, asker)
    turns_ahead = (await operations.status_of(connection, operation_id)).turns_ahead
    if turns_ahead:
        await ctx.reply(worktree_replies.in_line(kind, turns_ahead))


async def _worktree_to_restore_in(ctx: RequestContext, own: int | None) -> int | str:
    """Return the id of the worktree that the latest rescue is restored in, or a sentence that says why there is none.

    It is the conversation's own, or the one that the work was rescued from. A queued operation on the conversation's
    own worktree may still rescue something.
    """
    connection, conversation_id = ctx.connection, ctx.conversation_id
    latest = next(iter(await rescues.of_conversation(connection, conversation_id, 1)), None)
    if own is not None and (latest is not None or await operations.is_busy(connection, own)):
        return own
    if latest is None:
        return worktree_replies.NOTHING_TO_RESTORE
    if await conversations.is_closed(connection, conversation_id):
        return worktree_replies.CLOSED_TO_RESTORE
    reserved = await worktrees.reserve_again(connection, latest.worktree_id, latest.conversations)
    if not reserved and not await worktrees.is_removing(connection, latest.worktree_id):
        return worktree_replies.rescued_elsewhere(await worktrees.threads_at_path(connection, latest.worktree_id))
    return latest.worktree_id
