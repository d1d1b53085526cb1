"""`/status`: what a thread is doing, and what waits in it."""

from bot.rules import Chosen
from bot.store import conversations
from bot.store.nodes import SILENT_AFTER_SECONDS
from bot.thread import replies, tracking
from bot.turn import request_rows as requests
from bot.turn.request import Handler, RequestContext, Verb


async def _status(ctx: RequestContext, _: str | None) -> None:
    now = await conversations.overview(ctx.connection, ctx.conversation_id)
    unfinished = await requests.unfinished(ctx.connection, ctx.conversation_id)
    wait, queue = None, [turn.id for turn in unfinished if turn.number == ctx.number]
    is_running = any(turn.state == "running" for turn in unfinished)
    if not is_running and now.silent_node is None and now.removal_error is None:
        first = await requests.why_turns_wait(ctx.connection, queue[:1], ctx.now, SILENT_AFTER_SECONDS)
        # Without the word before it, "Queued." or "Waiting."
        wait = tracking.why_it_waits(first[0], ctx.now).partition(" ")[2] if first else None
    chosen = Chosen(*await conversations.chosen(ctx.connection, ctx.conversation_id))
    next_one = chosen.within(ctx.rules).worker if chosen.agent else None
    waits = await ctx.verbs.waits(ctx.connection, ctx.conversation_id)
    place = ctx.server_url, ctx.repository, ctx.number, ctx.now
    await ctx.reply(replies.status(now, unfinished, *place, wait, next_one, waits=waits))


VERB = Verb(commands=(Handler("status", needs_no_slash=True, summary=replies.STATUS_SUMMARY, run=_status),))
