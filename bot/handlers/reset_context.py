"""`/reset-context`: the session ends, the worktree stays."""

from bot.handlers.context import Handler, RequestContext
from bot.messages import replies
from bot.store import conversations


async def _run(ctx: RequestContext, _argument: str | None) -> None:
    ended = await conversations.end_session(ctx.connection, ctx.conversation_id, "reset-requested")
    await ctx.reply(replies.CONTEXT_RESET if ended else replies.NO_SESSION_TO_RESET)


RESET_CONTEXT = Handler("reset-context", summary=replies.RESET_CONTEXT_SUMMARY, run=_run)
