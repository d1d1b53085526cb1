"""What ends turns: `/stop [all]` (with `all` the queued turns too), and a thread that closes."""

import asyncio
from datetime import datetime, timedelta

from bot.model import Repository, ThreadRef
from bot.store import conversations
from bot.store.database import Connection, statement
from bot.thread import reasons, replies, thread_comments, tracking
from bot.thread.commit_message import split_subject
from bot.thread.formatting import plain
from bot.thread.tracking import TurnResult
from bot.turn import request_rows as requests
from bot.turn.parsing import one_of
from bot.turn.request import Handler, RequestContext, Verb, Verbs

CLOSE_WITH_COMMENT_SECONDS = 2
"""\"Close with comment\" fires both events in any order: a request this near to the close, or later, still runs."""
# GitHub's times are whole seconds: what was asked in the same second was asked before.
_GITHUB_CLOCK_TICK = timedelta(seconds=1)


async def _run(ctx: RequestContext, argument: str | None) -> None:
    stopped = await stop_turns(
        ctx.connection,
        ctx.thread_ref,
        ctx.number,
        ctx.server_url,
        reasons.stopped_by(ctx.author.login),
        asked_before=ctx.request.ask.at + _GITHUB_CLOCK_TICK,
        now=ctx.now,
        only_put_back=argument != "all",
    )
    await ctx.verbs.at_stop(ctx.connection, ctx.conversation_id)
    # What the same comment asks instead gets an answer of its own.
    if not stopped and not ctx.request.asks:
        await (ctx.reply(replies.NOTHING_TO_STOP) if ctx.silent_until is None else ctx.be_silent())


async def stop_turns(
    connection: Connection,
    thread_ref: ThreadRef | None,
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

    Without a thread `turn_id` is an operator's, who looks.
    """
    conversation_id = thread_ref.conversation_id if thread_ref is not None else 0
    # One that was put back between the two statements would be missed by both.
    await requests.lock_unfinished(connection, conversation_id)
    put_back_at = now if only_put_back else None
    stopped = await requests.stop_queued(connection, conversation_id, plain(reason), asked_before, put_back_at, turn_id)
    for turn in stopped:
        if thread_ref is None:
            continue
        left = turn.so_far
        result = TurnResult(
            "stopped",
            reason,
            answer=split_subject(left.answer)[0] if left.answer else "",
            notices=left.notices if left.answer else (),
            steps=left.steps,
            read=left.read if left.answer else (),
            asked=tracking.asked(turn.ask, server_url, thread_ref.repository, number, turn.id),
        )
        # In a thread: a long answer takes seconds.
        parts = await asyncio.to_thread(tracking.final, result, server_url=server_url)
        news_at = now if left.answer else None
        await thread_comments.ended(connection, thread_ref, turn.id, turn.ask.target, parts, "stopped", news_at)
    return len(stopped) + len(await requests.stop_running(connection, conversation_id, reason, asked_before, turn_id))


async def close(
    connection: Connection,
    verbs: Verbs,
    server_url: str,
    repository: Repository,
    number: int,
    closed_at: datetime,
    now: datetime,
) -> None:
    """End the conversation's session and its earlier turns and release its worktree, in the caller's transaction."""
    conversation = await conversations.find_conversation(connection, repository, number)
    if conversation is None:
        return
    if not await conversations.set_state(connection, conversation.id, closed_at, closed_at):
        return
    await conversations.end_session(connection, conversation.id, "conversation-closed")
    await verbs.at_stop(connection, conversation.id)
    before = closed_at - timedelta(seconds=CLOSE_WITH_COMMENT_SECONDS)
    thread_ref = ThreadRef(repository, conversation.id)
    await stop_turns(connection, thread_ref, number, server_url, reasons.THREAD_CLOSED, asked_before=before, now=now)
    if conversation.worktree_id is not None:
        await conversations.release_worktree(connection, conversation.worktree_id)


@statement("""
select number from conversations where (platform, repository_id) = ($1, $2) and state = 'open' order by number
""")
async def _open_threads(connection: Connection, repository: Repository) -> list[int]:
    """Return the numbers of the repository's threads that are open, as far as the bot knows."""


async def close_all(
    connection: Connection, verbs: Verbs, server_url: str, repository: Repository, now: datetime
) -> None:
    """Close all threads of a repository that was deleted."""
    for number in await _open_threads(connection, repository):
        await close(connection, verbs, server_url, repository, number, now, now)


async def reopen(connection: Connection, repository: Repository, number: int, at: datetime) -> None:
    """Mark the conversation open; its next turn starts a new session in the worktree that is there, or a new one."""
    conversation = await conversations.find_conversation(connection, repository, number)
    if conversation is not None:
        await conversations.set_state(connection, conversation.id, None, at)


STOP = Handler("stop", one_of("all"), needs_no_slash=True, runs_in_silence=True, summary=replies.STOP_SUMMARY, run=_run)
VERB = Verb(commands=(STOP,), recorded=("stop", "stop all"))
