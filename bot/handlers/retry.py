"""`/retry`: the last request that did not end `done` is queued again."""

from bot.handlers.agent_request import queue_turn
from bot.handlers.command import CommandSyntax
from bot.handlers.context import RequestContext
from bot.handlers.handler import Handler
from bot.messages import replies
from bot.store import requests


async def _run(ctx: RequestContext, _argument: str | None) -> None:
    last = await requests.last_not_done(ctx.connection, ctx.conversation_id)
    if last is None:
        await ctx.reply(replies.NOTHING_TO_RETRY)
        return
    await queue_turn(
        ctx,
        requests.NewTurn(
            text=last["request"],
            requested_by=ctx.author.login,
            requested_by_id=ctx.author.id,
            asked_at=ctx.asked_at,
            target=ctx.target,
            pinned_sha=last["pinned_sha"],
            context=last["context"],
        ),
    )


RETRY = Handler(CommandSyntax("retry"), replies.RETRY_SUMMARY, _run, queues_turn=True)
