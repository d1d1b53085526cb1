"""Somebody who may asked for something: the rows that follow, in one transaction of the caller."""

from bot.decide.actions import Hear
from bot.handlers import bringing_back
from bot.handlers.context import Desk, Facts, Premises
from bot.handlers.registry import obey
from bot.messages import replies
from bot.reply import thread_comments
from bot.reply.thread_comments import Here
from bot.store import conversations, requests
from bot.store.database import Connection


async def serve(connection: Connection, premises: Premises, hear: Hear, facts: Facts) -> None:
    """Does the commands in order, then queues one turn for the request; each only if it was not done before."""
    here, folder = await _arrive(connection, hear)
    if facts.thread is not None:
        await conversations.set_state(connection, here.conversation_id, facts.thread.closed_at)
    desk = Desk(connection, premises, hear.repository, hear.thread.number, here, folder, facts)
    for index, command in enumerate(hear.asks.commands):
        if await conversations.first_seen(connection, hear.effect(index)):
            await obey(desk, hear, command)
    if facts.request is None or not await conversations.first_seen(connection, hear.effect(len(hear.asks.commands))):
        return
    own_text = hear.target.id is None
    if own_text and await requests.asked_just_now(connection, here.conversation_id, facts.request, hear.asked_at):
        return
    await bringing_back.queue(
        desk,
        requests.Request(
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


async def deny(connection: Connection, hear: Hear) -> None:
    """A person who may not gets one 😕 on what addressed the bot, and nothing else."""
    await thread_comments.confused(connection, (await _arrive(connection, hear))[0], hear.target)


async def give_up(connection: Connection, hear: Hear, guid: str) -> None:
    """The bot could not handle what was asked: 😕 and one sentence, so that nobody waits."""
    here, _ = await _arrive(connection, hear)
    await thread_comments.confused(connection, here, hear.target)
    await thread_comments.reply(connection, here, hear.target, replies.gave_up(guid))


async def _arrive(connection: Connection, hear: Hear) -> tuple[Here, str]:
    """The rows of the repository and the thread as GitHub just described them, and the folder of the clone."""
    thread = hear.thread
    folder = await conversations.save_codebase(connection, hear.repository)
    conversation = await conversations.save_conversation(
        connection, hear.repository, thread.number, thread.kind, thread.title, thread.closed_at
    )
    return Here(hear.repository, conversation.id), folder
