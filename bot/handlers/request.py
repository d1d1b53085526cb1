"""Somebody who may asked for something: the rows that follow, in one transaction of the caller."""

from bot.decide.actions import Request
from bot.handlers import bringing_back
from bot.handlers.context import GitHubFacts, NodePaths, RequestContext
from bot.handlers.registry import run_command
from bot.messages import replies
from bot.reply import thread_comments
from bot.reply.thread_comments import ThreadRef
from bot.store import conversations, requests
from bot.store.database import Connection


async def handle_request(connection: Connection, premises: NodePaths, hear: Request, facts: GitHubFacts) -> None:
    """Does the commands in order, then queues one turn for the request; each only if it was not done before."""
    thread_ref, folder = await _arrive(connection, hear)
    if facts.thread is not None:
        await conversations.set_state(connection, thread_ref.conversation_id, facts.thread.closed_at)
    ctx = RequestContext(connection, premises, hear.repository, hear.thread.number, thread_ref, folder, facts)
    for index, command in enumerate(hear.asks.commands):
        if await conversations.first_seen(connection, hear.effect(index)):
            await run_command(ctx, hear, command)
    if facts.request is None or not await conversations.first_seen(connection, hear.effect(len(hear.asks.commands))):
        return
    own_text = hear.target.id is None
    if own_text and await requests.asked_just_now(connection, thread_ref.conversation_id, facts.request, hear.asked_at):
        return
    await bringing_back.queue(
        ctx,
        requests.NewTurn(
            text=facts.request,
            requested_by=hear.speaker.login,
            requested_by_id=hear.speaker.id,
            asked_at=hear.asked_at,
            target=hear.target,
            review_id=hear.review_id,
            pinned_sha=facts.pull.head_sha if facts.pull and not facts.pull.same_repository else None,
            context=hear.context,
        ),
    )


async def refuse_request(connection: Connection, hear: Request) -> None:
    """A person who may not gets one 😕 on what addressed the bot, and nothing else."""
    await thread_comments.confused(connection, (await _arrive(connection, hear))[0], hear.target)


async def report_failure(connection: Connection, hear: Request, guid: str) -> None:
    """The bot could not handle what was asked: 😕 and one sentence, so that nobody waits."""
    thread_ref, _ = await _arrive(connection, hear)
    await thread_comments.confused(connection, thread_ref, hear.target)
    await thread_comments.reply(connection, thread_ref, hear.target, replies.gave_up(guid))


async def _arrive(connection: Connection, hear: Request) -> tuple[ThreadRef, str]:
    """The rows of the repository and the thread as GitHub just described them, and the folder of the clone."""
    thread = hear.thread
    folder = await conversations.save_codebase(connection, hear.repository)
    conversation = await conversations.save_conversation(
        connection, hear.repository, thread.number, thread.kind, thread.title, thread.closed_at
    )
    return ThreadRef(hear.repository, conversation.id), folder
