"""Drop a rescue: its commit, its directory, its row."""

import asyncio
from pathlib import Path

from bot.failpoints import reached
from bot.model import Rescue
from bot.node.context import NodeContext
from bot.node.transactions import persist
from bot.operations.shared import Outcome, failed
from bot.store import rescues
from bot.store.operations import Operation
from bot.thread import worktree_replies
from bot.tree.clone import trash
from bot.tree.clone.clone import CloneLock
from bot.tree.rescue.message import drop_rescue


async def drop_for_operator(ctx: NodeContext, lock: CloneLock, operation: Operation) -> Outcome:
    """Delete the operation's rescue; one that is gone already is done. Raises GitError, OSError, InvalidNameError."""
    rescue = await persist(ctx.pool, rescues.with_id, operation.rescue_id or 0)
    if rescue is None:
        return Outcome("done", worktree_replies.DROPPED)
    if rescue.node != ctx.node:
        return failed(operation, worktree_replies.on_node(rescue.node_name))
    return Outcome("done", worktree_replies.DROPPED, trashed=await drop(ctx, lock, rescue))


async def drop(ctx: NodeContext, lock: CloneLock, rescue: Rescue) -> tuple[Path, ...]:
    """Delete a rescue; return what is to be deleted from the trash. Raises GitError, OSError, InvalidNameError."""
    trashed = drop_kept(ctx, rescue.kept) if rescue.kept is not None else ()
    if rescue.ref is not None and await asyncio.to_thread(lock.clone.path.is_dir):
        await drop_rescue(lock, rescue.ref)
    reached("rescue-dropped")
    await persist(ctx.pool, rescues.delete, rescue.id)
    return trashed


def drop_kept(ctx: NodeContext, name: str) -> tuple[Path, ...]:
    """Move a directory that was kept whole, with git's state of it, to the trash; return its places. Raises OSError."""
    places = (trash.kept_folder(ctx.data_dir) / one for one in (name, f"{name}{trash.GIT_STATE}"))
    return tuple(filter(None, (trash.move_to_trash(ctx.data_dir, place) for place in places)))
