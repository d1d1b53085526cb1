"""`/reset-context`: the session ends, and the files stay."""

from bot.store import conversations
from bot.thread import replies
from bot.turn.request import Handler, RequestContext, Verb


async def _reset_context(ctx: RequestContext, _: str | None) -> None:
    ended = await conversations.end_session(ctx.connection, ctx.conversation_id, "reset-requested")
    await ctx.reply(replies.CONTEXT_RESET if ended else replies.NO_SESSION_TO_RESET)


VERB = Verb(commands=(Handler("reset-context", summary=replies.RESET_CONTEXT_SUMMARY, run=_reset_context),))
