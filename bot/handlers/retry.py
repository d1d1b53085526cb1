"""`/retry`: the last request that did not end `done` is queued again."""

from bot.handlers.agent_request import AgentRequest, queue_turn
from bot.handlers.context import Handler, RequestContext
from bot.messages import replies
from bot.reply import thread_comments
from bot.store import requests


async def _run(ctx: RequestContext, _argument: str | None) -> None:
    last = await requests.last_not_done(ctx.connection, ctx.conversation_id)
    if last is None:
        await ctx.reply(replies.NOTHING_TO_RETRY)
        return
    await thread_comments.acknowledge(ctx.connection, ctx.thread_ref, ctx.target, ctx.author.id)
    await queue_turn(ctx, AgentRequest(last["request"], last["context"]), pinned_sha=last["pinned_sha"])


RETRY = Handler("retry", summary=replies.RETRY_SUMMARY, run=_run, queues_turn=True)
