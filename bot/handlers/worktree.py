"""`/reset` and `/worktree …`: answered at once from rows, or queued for the node that has the worktree."""

from typing import Literal

from bot.decide.actions import Request
from bot.decide.parsing import WorktreeVerb
from bot.handlers.context import RequestContext
from bot.messages import worktree_replies as sentences
from bot.messages.worktree_replies import OldWork, Saved, WorktreeLine
from bot.reply import thread_comments
from bot.store import conversations, operations, rescues, worktrees
from bot.store.operations import Asker
from bot.store.rescues import Rescue

Operation = Literal["reset", "remove", "restore"]


async def run_worktree_command(ctx: RequestContext, hear: Request, verb: WorktreeVerb | None) -> None:
    """Does what `/worktree` was followed by, in the caller's transaction; None: by nothing it knows."""
    match verb:
        case None:
            await _answer(ctx, hear, sentences.USAGE)
        case "list":
            await _answer(ctx, hear, await _list(ctx))
        case "prune":
            await _answer(ctx, hear, sentences.pruning(await _prune(ctx)))
        case "reset" | "remove" | "restore":
            await _operate(ctx, hear, verb)


async def _answer(ctx: RequestContext, hear: Request, words: str) -> None:
    await thread_comments.reply(ctx.connection, ctx.thread_ref, hear.target, words)


async def _list(ctx: RequestContext) -> str:
    connection, conversation_id, now = ctx.connection, ctx.thread_ref.conversation_id, ctx.facts.now
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


async def _prune(ctx: RequestContext) -> int:
    """Lets go the repository's worktrees whose threads are all closed and that nothing needs; how many go."""
    connection = ctx.connection
    found = await worktrees.left_over(connection, ctx.repository)
    return sum([await conversations.let_go(connection, worktree_id) for worktree_id in found])


async def _operate(ctx: RequestContext, hear: Request, verb: Operation) -> None:
    connection, conversation_id = ctx.connection, ctx.thread_ref.conversation_id
    own = await conversations.worktree_of(connection, conversation_id)
    live = await conversations.live_worktree(connection, own) if own is not None else None
    worktree_id = live.id if live else None
    if verb == "restore":
        place = await _to_restore_in(ctx, worktree_id)
        if isinstance(place, str):
            await _answer(ctx, hear, place)
            return
        worktree_id = place
    if worktree_id is None:
        await _answer(ctx, hear, sentences.no_worktree(verb))
        return
    asker = Asker(hear.speaker.login, hear.asked_at, conversation_id, hear.target)
    asked = await operations.ask(connection, worktree_id, verb, asker)
    turns = (await operations.status_of(connection, asked)).turns_ahead
    if turns:
        await _answer(ctx, hear, sentences.in_line(verb, turns))


async def _to_restore_in(ctx: RequestContext, own: int | None) -> int | str:
    """The worktree that the latest rescue comes back to: the thread's own, or the one it was in; or why there is none.

    In its own something may be on its way that rescues more.
    """
    connection, conversation_id = ctx.connection, ctx.thread_ref.conversation_id
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
