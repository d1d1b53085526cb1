"""`/retry`: the last request that did not end as done is asked again."""

from dataclasses import replace

from bot.thread import replies
from bot.turn import request_rows as requests
from bot.turn.confirm import RETRY
from bot.turn.queueing import queue_turn
from bot.turn.request import Handler, RequestContext, Verb


async def _retry(ctx: RequestContext, _: str | None) -> None:
    last = await requests.last_not_done(ctx.connection, ctx.conversation_id)
    if last is None:
        await ctx.reply(replies.NOTHING_TO_RETRY)
        return
    await ctx.acknowledge()
    (ask, turn_id), own = last, ctx.request.ask
    if ctx.verbs.kind_of(ask).carry_out is not None:
        name, _, argument = ask.text.removeprefix("/").partition(" ")
        await ctx.verbs.commands[name].run(replace(ctx, retry_of=ask.retry_of or turn_id), argument or None)
        return
    again = replace(ask, by=own.by, at=own.at, target=own.target, review=None, seen=None)
    needs_agent = ctx.verbs.kind_of(ask).agent != "never"
    await queue_turn(ctx, replace(again, retry_of=ask.retry_of or turn_id), needs_agent=needs_agent)


COMMAND = Handler(RETRY, summary=replies.RETRY_SUMMARY, run=_retry, queues_turn=True)
VERB = Verb(commands=(COMMAND,), recorded=("retry",))
