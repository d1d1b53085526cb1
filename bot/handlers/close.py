"""A thread closes or opens again: sessions and turns end, the worktree goes with its last conversation."""

from datetime import datetime, timedelta

from bot.handlers.stop import stop_turns
from bot.messages import reasons, worktree_replies
from bot.model import Repository, ThreadRef
from bot.reply import thread_comments
from bot.store import conversations, operations
from bot.store.database import Connection

CLOSE_WITH_COMMENT_SECONDS = 2
"""\"Close with comment\" fires both events in any order: a request this near to the close, or later, still runs."""


async def close(
    connection: Connection,
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
    if not await conversations.close_conversation(connection, conversation.id, closed_at):
        return
    await conversations.end_session(connection, conversation.id, "conversation-closed")
    before = closed_at - timedelta(seconds=CLOSE_WITH_COMMENT_SECONDS)
    thread_ref = ThreadRef(repository, conversation.id)
    await stop_turns(connection, thread_ref, number, server_url, reasons.THREAD_CLOSED, asked_before=before, now=now)
    for gone in await operations.withdraw(connection, conversation.id, before, reasons.THREAD_CLOSED):
        if gone.target is not None:
            words = worktree_replies.thread_was_closed(gone.kind)
            await thread_comments.reply(connection, thread_ref, gone.target, words, instead_of=gone.reply_id)
    if conversation.worktree_id is not None:
        await conversations.release_worktree(connection, conversation.worktree_id)


async def reopen(connection: Connection, repository: Repository, number: int, at: datetime) -> None:
    """Mark the conversation open; its next turn starts a new session in the worktree that is there, or a new one."""
    conversation = await conversations.find_conversation(connection, repository, number)
    if conversation is not None:
        await conversations.reopen_conversation(connection, conversation.id, at)
