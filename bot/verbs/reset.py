"""`/reset`, `/worktree reset`: files and conversation start anew, after a rescue (DESIGN.md §4)."""

import asyncio

from bot import refs
from bot.model import Saved
from bot.node.rescues import merged_head, record_rescue, rescue_size
from bot.store import conversations, worktrees
from bot.store.database import Connection
from bot.thread.formatting import inline_code
from bot.thread.tracking import TurnResult
from bot.thread.worktree_replies import no_worktree, refused, rescued, threads
from bot.tree import CheckoutRefused, Metadata, RescueLabel
from bot.turn.alone import not_done, require_live, save_done, work_alone
from bot.turn.kind import Kind
from bot.turn.queueing import queue_alone
from bot.turn.request import Handler, RequestContext, Verb
from bot.turn.restoring import fetch_for
from bot.turn.turn_run import TurnRun

SUMMARY = "starts a new conversation and resets the files; work that is not on GitHub is rescued first"


def was_reset(
    before: str | None,
    after: str | None,
    base: str | None,
    saved: Saved | None,
    others: tuple[int, ...],
) -> str:
    """`before` and `after` are the branch, None without one; `base` is what it starts from, None for its own."""
    if after is None:
        words = "The worktree was reset to the head of the pull request."
    elif base is None:
        words = f"The worktree was reset: {inline_code(after)} is as it is on GitHub."
    elif before is None or before == after:
        words = f"The worktree was reset: {inline_code(after)} is at the tip of {inline_code(base)} again."
    else:
        words = (
            f"The worktree was reset. It is now on {inline_code(after)}, which starts from {inline_code(base)}; "
            f"{inline_code(before)} is unchanged."
        )
    fresh = (
        f"The next requests here and in {threads(others)} start a new conversation with the agent."
        if others
        else "The next request starts a new conversation with the agent."
    )
    return "\n\n".join([f"{words} {fresh}", *rescued(saved)])


async def _reset(run: TurnRun) -> str | TurnResult:
    """Rescue what is there, reset the checkout and end the sessions of its threads. Every step can be repeated.

    Raises StoppedError, ClaimLostError, ImpossibleError, GitError, InvalidNameError, OSError.
    """
    require_live(run)
    ctx, worktree = run.ctx, run.turn.worktree
    # The same in each run: what an earlier one rescued is found again.
    label = RescueLabel(worktree.id, worktree.branch, worktree.conversations, run.turn.created_at)
    merged = await merged_head(ctx, worktree)
    async with work_alone(run) as tree:
        await fetch_for(ctx, tree, worktree)
        result = await tree.reset(refs.start_again(worktree), label, merged)
        if isinstance(result, CheckoutRefused):
            return not_done(refused("reset", result.next_step))
        size = await rescue_size(tree, result.rescue, result.kept)
        made = result.branch, result.base_branch
        await asyncio.to_thread(Metadata.record_use, tree.path, worktree, *made, ctx.clock())
        run.trashed = result.trashed
        saved = None
        if result.rescue is not None or result.kept is not None:
            files, commits = (result.rescue.files, result.rescue.commits) if result.rescue else (0, 0)
            saved = Saved(files, commits, result.kept is not None)

        async def write(connection: Connection) -> None:
            await record_rescue(connection, label, result.rescue, result.kept, size)
            await worktrees.record_checkout(connection, worktree.id, *made, fresh=True)
            await worktrees.end_sessions(connection, worktree.id, "worktree-reset")

        words = was_reset(worktree.branch, *made, saved, run.others)
        return await save_done(run, words, write)


async def ask_for_reset(ctx: RequestContext, words: str) -> None:
    """Queue the turn, or reply that there is nothing to do; `words` are the whole command."""
    live = await conversations.own_live_worktree(ctx.connection, ctx.conversation_id)
    if live is None:
        await ctx.reply(no_worktree("reset"))
        return
    await queue_alone(ctx, "reset", words, live.id)


COMMAND = Handler("reset", summary=SUMMARY, run=lambda ctx, _: ask_for_reset(ctx, "/reset"))
RESET = Kind("reset", "command", agent="never", writes=False, carry_out=_reset, sets_up=True)
VERB = Verb(commands=(COMMAND,), kinds=(RESET,), recorded=("reset", "worktree reset"))
