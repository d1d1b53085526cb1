"""Reset a worktree to its base, after a rescue."""

import asyncio

from bot.clones.clone import clone_lock
from bot.clones.metadata import record_use
from bot.clones.start import start_again
from bot.messages import worktree_replies
from bot.messages.worktree_replies import Saved
from bot.node.context import NodeContext
from bot.node.transactions import persist
from bot.operations.create import fetched
from bot.operations.shared import Outcome, merged_head, record_rescue, rescue_size
from bot.rescue.message import RescueLabel
from bot.store import operations, worktrees
from bot.store.database import Connection
from bot.store.operations import ClaimedOperation
from bot.worktrees.reset import ResetRefused, reset


async def reset_worktree(ctx: NodeContext, operation: ClaimedOperation) -> Outcome:
    """Rescue what is there, reset the checkout and end the sessions of its threads."""
    worktree = operation.worktree
    merged = await merged_head(ctx, worktree)
    # The same at each attempt: what an earlier attempt rescued is found again.
    label = RescueLabel(worktree.id, worktree.branch, worktree.conversations, operation.created_at)
    clone, path = ctx.clone(worktree.folder), ctx.directory(worktree.path)
    async with clone_lock(clone) as lock:
        await persist(ctx.pool, operations.check_claim, operation.claim)
        if (unfetched := await fetched(ctx, lock, operation)) is not None:
            return unfetched
        result = await reset(lock, path, start_again(worktree), label, merged)
        if isinstance(result, ResetRefused):
            return Outcome("failed", worktree_replies.refused(operation.kind, result.why))
        size = await rescue_size(clone, result.rescue, result.kept)
    await asyncio.to_thread(record_use, path, worktree, result.branch, result.base_branch, ctx.clock())

    async def write(connection: Connection) -> None:
        await record_rescue(connection, label, result.rescue, result.kept, size)
        await worktrees.record_checkout(connection, worktree.id, result.branch, result.base_branch, fresh=True)
        await worktrees.end_sessions(connection, worktree.id, "worktree-reset")

    saved = None
    if result.rescue is not None or result.kept is not None:
        files, commits = (result.rescue.files, result.rescue.commits) if result.rescue else (0, 0)
        saved = Saved(files, commits, result.kept is not None)
    words = worktree_replies.was_reset(
        worktree.branch, result.branch, result.base_branch, saved, operation.others, result.submodules
    )
    return Outcome("done", words, write=write, trashed=result.trashed)
