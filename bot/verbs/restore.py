"""`/worktree restore`: what was rescued last comes back, into a worktree without changes."""

from collections.abc import Sequence
from dataclasses import replace

from bot.model import Rescue, Saved
from bot.node import rescue_rows as rescues
from bot.store import conversations, worktrees
from bot.store.database import Connection
from bot.thread import worktree_replies
from bot.thread.formatting import capitalize, format_list, inline_code
from bot.thread.tracking import TurnResult
from bot.thread.worktree_replies import restored_clause
from bot.turn import request_rows as requests
from bot.turn.alone import not_done, save_done, work_alone
from bot.turn.kind import Kind
from bot.turn.queueing import queue_alone
from bot.turn.request import RequestContext, Verb
from bot.turn.restoring import bring_back
from bot.turn.turn_run import TurnRun


def was_restored(back: Saved, branch: str | None, elsewhere: Sequence[str]) -> str:
    """`back` is what was missing and is there again; `elsewhere` are commits that only the rescue has."""
    where = f" on {inline_code(branch)}" if branch else ""
    if back.files or back.commits or back.whole:
        words = f"{capitalize(restored_clause(back))} restored{where}."
    else:
        words = "All rescued work is there already."
    if elsewhere:
        words += f" Other commits stay in the rescue on the bot's machine: {format_list(elsewhere)}."
    return words


async def _restore(run: TurnRun) -> str | TurnResult:
    """Bring back the latest rescue, or the one that an operator named; a removed worktree is made again for it.

    Every step can be repeated. Raises StoppedError, ClaimLostError, ImpossibleError, GitError, InvalidNameError,
    OSError.
    """
    rescue = await run.write(_rescue_of, run)
    if rescue is None:
        return await save_done(run, worktree_replies.NOTHING_TO_RESTORE)
    if rescue.node != run.ctx.node:
        return not_done(worktree_replies.rescued_on(rescue.id, rescue.node_name))
    if (worktree := run.turn.worktree).state == "removed":
        if not await run.write(worktrees.reserve_again, worktree.id, rescue.conversations):
            return not_done(worktree_replies.not_done("restore", *worktree_replies.PATH_TAKEN))
        run.turn = replace(run.turn, worktree=replace(worktree, state="reserved"))
    async with work_alone(run) as tree:
        back = await bring_back(run, tree, rescue)
        if back.saved is None:
            await run.write(back.record, run)
            return not_done(back.words)
        branch = back.made.branch if back.made is not None else None
        words = was_restored(back.saved, branch, back.elsewhere)

        async def write(connection: Connection) -> None:
            await back.record(connection, run)

        return await save_done(run, words, write)


async def _rescue_of(connection: Connection, run: TurnRun) -> Rescue | None:
    """Return what was rescued last by the thread that asked; for an operator the one that was named, or the
    worktree's.
    """
    if run.is_of_thread:
        return next(iter(await rescues.of_conversation(connection, run.turn.conversation.id, 1)), None)
    if (named := run.turn.ask.of.get("rescue")) is not None:
        return await rescues.with_id(connection, named)
    return next(iter(await rescues.of_worktree(connection, run.turn.worktree.id)), None)


async def ask_to_restore(ctx: RequestContext) -> None:
    """Queue the turn in the conversation's own worktree, or in the one that the work was rescued from; or reply why
    there is nothing to do.

    A turn that waits in the conversation's own worktree may still rescue something.
    """
    connection, conversation_id = ctx.connection, ctx.conversation_id
    own = await conversations.own_live_worktree(connection, conversation_id)
    latest = next(iter(await rescues.of_conversation(connection, conversation_id, 1)), None)
    if own is not None and (latest is not None or await requests.may_rescue(connection, own.id)):
        await queue_alone(ctx, "restore", "/worktree restore", own.id)
    elif latest is None:
        await ctx.reply(worktree_replies.NOTHING_TO_RESTORE)
    elif await conversations.is_closed(connection, conversation_id):
        await ctx.reply(worktree_replies.CLOSED_TO_RESTORE)
    else:
        there = latest.worktree_id
        reserved = await worktrees.reserve_again(connection, there, latest.conversations)
        if reserved or await worktrees.is_removing(connection, there):
            await queue_alone(ctx, "restore", "/worktree restore", there)
        else:
            others = await worktrees.threads_at_path(connection, there)
            await ctx.reply(worktree_replies.rescued_elsewhere(others))


RESTORE = Kind("restore", "command", agent="never", writes=False, carry_out=_restore, makes=True)
VERB = Verb(kinds=(RESTORE,), recorded=("worktree restore",))
