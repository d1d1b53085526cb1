"""Drop a rescue: its commit, its directory, its row."""

import asyncio
import os

from bot.clones import trash
from bot.clones.clone import clone_lock
from bot.messages import worktree_replies
from bot.node.context import NodeContext
from bot.node.transactions import persist
from bot.operations.shared import Outcome, failed
from bot.rescue.stored import drop_rescue
from bot.store import rescues
from bot.store.operations import ClaimedOperation
from bot.store.rescues import Rescue


async def drop_for_operator(ctx: NodeContext, operation: ClaimedOperation) -> Outcome:
    """Delete the operation's rescue; one that is gone already is done. Raises GitError, OSError, InvalidNameError."""
    rescue_id = operation.rescue_id or 0
    rescue = await persist(ctx.pool, rescues.with_id, rescue_id)
    if rescue is not None and rescue.node != ctx.node:
        return failed(operation, f"it is on the node {rescue.node_name}")
    if rescue is not None:
        await drop_now(ctx, rescue)
    return Outcome("done", worktree_replies.DROPPED)


async def drop_now(ctx: NodeContext, rescue: Rescue) -> int:
    """Delete a rescue before its time; return the bytes freed. Raises GitError, OSError, InvalidNameError."""
    freed = await drop_kept(ctx, rescue.kept) if rescue.kept is not None else 0
    await drop_commit(ctx, rescue)
    await persist(ctx.pool, rescues.delete, rescue.id)
    return freed


async def drop_kept(ctx: NodeContext, name: str) -> int:
    """Delete a directory that was kept whole, with git's state of it; return the bytes freed. Raises OSError."""
    freed = 0
    for one in (name, f"{name}{trash.GIT_STATE}"):
        trashed = trash.move_to_trash(ctx.data_dir, trash.kept_folder(ctx.data_dir) / one)
        freed += await trash.delete(trashed) if trashed is not None else 0
    return freed


async def drop_commit(ctx: NodeContext, rescue: Rescue) -> None:
    """Delete a rescue's ref. Raises OSError while its kept directory is still there."""
    if rescue.kept is not None and os.path.lexists(trash.kept_folder(ctx.data_dir) / rescue.kept):  # noqa: ASYNC240
        raise FileExistsError(f"{rescue.kept} was not deleted")
    clone = ctx.clone(rescue.folder)
    if rescue.ref is None or not await asyncio.to_thread(clone.path.is_dir):
        return
    async with clone_lock(clone) as lock:
        await drop_rescue(lock, rescue.ref)
