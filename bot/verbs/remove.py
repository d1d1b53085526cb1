"""`/worktree remove`: the worktree goes, after a rescue; the next request makes a new one."""

from bot.care import removal_rows as removals
from bot.care.removing import take_now
from bot.model import Saved
from bot.node import rescue_rows as rescues
from bot.node.rescues import merged_head
from bot.store import conversations
from bot.store.database import Connection
from bot.thread.tracking import TurnResult
from bot.thread.worktree_replies import IN_USE, no_worktree, rescued, threads
from bot.thread.worktree_replies import not_done as words_for
from bot.tree import NotRemoved
from bot.turn.alone import not_done, save_done, work_alone
from bot.turn.kind import Kind
from bot.turn.queueing import queue_alone
from bot.turn.request import RequestContext, Verb
from bot.turn.turn_run import TurnRun


def was_removed(saved: Saved | None, others: tuple[int, ...]) -> str:
    """`others` are the threads that used it too."""
    words = "The worktree was removed. The next request makes a new one."
    if others:
        words += f" It was also used by {threads(others)}."
    return "\n\n".join([words, *rescued(saved)])


async def _remove(run: TurnRun) -> str | TurnResult:
    """Remove the worktree, unless an earlier run did. Every step can be repeated.

    Raises StoppedError, ClaimLostError, GitError, InvalidNameError, OSError.
    """
    ctx, worktree = run.ctx, run.turn.worktree
    merged = await merged_head(ctx, worktree)
    async with work_alone(run) as tree:
        if worktree.state != "removed":
            if not await run.write(removals.decide, ctx.node, worktree.id, "command", run.turn.id):
                return not_done(words_for("remove", IN_USE))
            result = await take_now(ctx, tree, worktree.id, merged)
            if isinstance(result, NotRemoved):
                return not_done(words_for("remove", result.why))
            run.trashed = result.trashed
        saved = await run.write(_rescued_since, run)
        return await save_done(run, was_removed(saved, run.others))


async def _rescued_since(connection: Connection, run: TurnRun) -> Saved | None:
    """Return what was rescued since it was asked, also by an earlier run."""
    found = await rescues.of_worktree(connection, run.turn.worktree.id)
    return found[0].saved if found and found[0].created_at >= run.turn.created_at else None


async def ask_for_removal(ctx: RequestContext) -> None:
    """Queue the turn, or reply that there is nothing to do."""
    live = await conversations.own_live_worktree(ctx.connection, ctx.conversation_id)
    if live is None:
        await ctx.reply(no_worktree("remove"))
        return
    await queue_alone(ctx, "remove", "/worktree remove", live.id)


REMOVE = Kind("remove", "command", agent="never", writes=False, carry_out=_remove)
VERB = Verb(kinds=(REMOVE,), recorded=("worktree remove",))
