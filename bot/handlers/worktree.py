"""`/reset` and `/worktree …`: answered at once from rows, or queued for the node that has the worktree."""

from typing import Literal

from bot.decide.actions import Hear
from bot.decide.parsing import WorktreeVerb
from bot.handlers.context import Desk
from bot.messages import worktree_replies as sentences
from bot.messages.worktree_replies import OldWork, Saved, WorktreeLine
from bot.reply import thread_comments
from bot.store import conversations, operations, rescues, worktrees
from bot.store.operations import Asker
from bot.store.rescues import Rescue

Operation = Literal["reset", "remove", "restore"]


async def obey_worktree(desk: Desk, hear: Hear, verb: WorktreeVerb | None) -> None:
    """Does what `/worktree` was followed by, in the caller's transaction; None: by nothing it knows."""
    match verb:
        case None:
            await _answer(desk, hear, sentences.USAGE)
        case "list":
            await _answer(desk, hear, await _list(desk))
        case "prune":
            await _answer(desk, hear, sentences.pruning(await _prune(desk)))
        case "reset" | "remove" | "restore":
            await _operate(desk, hear, verb)


async def _answer(desk: Desk, hear: Hear, words: str) -> None:
    await thread_comments.reply(desk.connection, desk.here, hear.target, words)


async def _list(desk: Desk) -> str:
    connection, conversation_id, now = desk.connection, desk.here.conversation_id, desk.facts.now
    own = await worktrees.glance(connection, conversation_id)
    line = None
    if own is not None:
        line = WorktreeLine(own.branch, own.detached, own.state == "ready", own.others, now - own.active_at)
    rescued = await rescues.of_conversation(connection, conversation_id)
    return sentences.worktree_list(
        line, [OldWork(saved(one), now - one.created_at, one.bytes, one.restored_at is not None) for one in rescued]
    )


def saved(rescue: Rescue) -> Saved:
    """What was rescued, in words' terms."""
    return Saved(rescue.files, rescue.commits, rescue.kept is not None)


async def _prune(desk: Desk) -> int:
    """Lets go the repository's worktrees whose threads are all closed and that nothing needs; how many go."""
    connection = desk.connection
    found = await worktrees.left_over(connection, desk.repository)
    return sum([await conversations.let_go(connection, worktree_id) for worktree_id in found])


async def _operate(desk: Desk, hear: Hear, verb: Operation) -> None:
    connection, conversation_id = desk.connection, desk.here.conversation_id
    own = await conversations.worktree_of(connection, conversation_id)
    live = await conversations.live_worktree(connection, own) if own is not None else None
    worktree_id = live.id if live else None
    if verb == "restore":
        place = await _to_restore_in(desk, worktree_id)
        if isinstance(place, str):
            await _answer(desk, hear, place)
            return
        worktree_id = place
    if worktree_id is None:
        await _answer(desk, hear, sentences.no_worktree(verb))
        return
    asker = Asker(hear.speaker.login, hear.asked_at, conversation_id, hear.target)
    asked = await operations.ask(connection, worktree_id, verb, asker)
    turns = (await operations.look(connection, asked)).turns_ahead
    if turns:
        await _answer(desk, hear, sentences.in_line(verb, turns))


async def _to_restore_in(desk: Desk, own: int | None) -> int | str:
    """The worktree that the latest rescue comes back to: the thread's own, or the one it was in; or why there is none.

    In its own something may be on its way that rescues more.
    """
    connection, conversation_id = desk.connection, desk.here.conversation_id
    latest = next(iter(await rescues.of_conversation(connection, conversation_id, 1)), None)
    if own is not None and (latest is not None or await operations.any_waits(connection, own)):
        return own
    if latest is None:
        return sentences.nothing_to_restore()
    if await conversations.is_closed(connection, conversation_id):
        return sentences.closed_to_restore()
    if await worktrees.revive(connection, latest.worktree_id):
        await worktrees.rejoin(connection, latest.worktree_id, latest.conversations)
    elif not await worktrees.is_going(connection, latest.worktree_id):
        return sentences.rescued_elsewhere(await worktrees.users_of_place(connection, latest.worktree_id))
    return latest.worktree_id
