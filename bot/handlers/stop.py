"""`/stop [all]`: the running turn ends, with `all` the queued turns too."""

from datetime import datetime, timedelta

from bot.handlers.command import one_of
from bot.handlers.context import Handler, RequestContext
from bot.messages import reasons, replies, tracking
from bot.messages.formatting import plain
from bot.messages.tracking import TurnResult
from bot.model import ThreadRef
from bot.reply import thread_comments
from bot.store import requests
from bot.store.database import Connection

# GitHub's times are whole seconds: what was asked in the same second was asked before.
_GITHUB_CLOCK_TICK = timedelta(seconds=1)


async def _run(ctx: RequestContext, argument: str | None) -> None:
    stopped = await stop_turns(
        ctx.connection,
        ctx.thread_ref,
        ctx.number,
        ctx.server_url,
        reasons.stopped_by(ctx.author.login),
        asked_before=ctx.asked_at + _GITHUB_CLOCK_TICK,
        put_back_at=None if argument == "all" else ctx.now,
    )
    if not stopped:
        await ctx.reply(replies.NOTHING_TO_STOP)


async def stop_turns(
    connection: Connection,
    thread_ref: ThreadRef,
    number: int,
    server_url: str,
    reason: str,
    *,
    asked_before: datetime,
    put_back_at: datetime | None = None,
) -> int:
    """Stop the conversation's running turn and its queued turns, with `put_back_at` only one that was put back until a
    time after that; return how many there were.
    """
    conversation_id = thread_ref.conversation_id
    stopped = await requests.stop_queued(connection, conversation_id, plain(reason), asked_before, put_back_at)
    for turn_id, login, target in stopped:
        asked = tracking.asked(login, server_url, thread_ref.repository, number, target, turn_id)
        result = TurnResult("stopped", reason, asked=asked)
        await thread_comments.ended(connection, thread_ref, turn_id, target, tracking.final(result), "stopped")
    return len(stopped) + len(await requests.stop_running(connection, conversation_id, reason, asked_before))


STOP = Handler("stop", one_of("all"), needs_no_slash=True, summary=replies.STOP_SUMMARY, run=_run)
