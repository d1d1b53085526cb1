"""`/stop [all]`: the running turn ends, with `all` the queued turns too."""

import asyncio
from datetime import datetime, timedelta

from bot.handlers.command import one_of
from bot.handlers.context import Handler, RequestContext
from bot.messages import reasons, replies, tracking
from bot.messages.commit_message import split_subject
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
        now=ctx.now,
        only_put_back=argument != "all",
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
    now: datetime,
    only_put_back: bool = False,
    turn_id: int | None = None,
) -> int:
    """Stop the conversation's running turn and its queued turns, or of those `only_put_back` until a later time, or
    only `turn_id`; return how many there were. The answer of one whose agent was done is shown.
    """
    conversation_id = thread_ref.conversation_id
    # One that was put back between the two statements would be missed by both.
    await requests.lock_unfinished(connection, conversation_id)
    put_back_at = now if only_put_back else None
    stopped = await requests.stop_queued(connection, conversation_id, plain(reason), asked_before, put_back_at, turn_id)
    for turn in stopped:
        result = TurnResult(
            "stopped",
            reason,
            answer=split_subject(turn.answer)[0] if turn.answer else "",
            notices=turn.notices if turn.answer else (),
            steps=turn.steps,
            read=turn.read if turn.answer else (),
            asked=tracking.asked(turn.requested_by, server_url, thread_ref.repository, number, turn.target, turn.id),
        )
        # In a thread: a long answer takes seconds.
        parts = await asyncio.to_thread(tracking.final, result, server_url=server_url)
        news_at = now if turn.answer else None
        await thread_comments.ended(connection, thread_ref, turn.id, turn.target, parts, "stopped", news_at)
    return len(stopped) + len(await requests.stop_running(connection, conversation_id, reason, asked_before, turn_id))


STOP = Handler("stop", one_of("all"), needs_no_slash=True, summary=replies.STOP_SUMMARY, run=_run)
