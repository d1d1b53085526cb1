"""Bring back what was rescued last, into a worktree without changes."""

from dataclasses import replace

from bot.model import Rescue
from bot.node.context import NodeContext
from bot.node.transactions import persist
from bot.operations.create import make, record_checkout
from bot.operations.shared import Outcome, failed
from bot.store import rescues, worktrees
from bot.store.database import Connection
from bot.store.operations import Operation
from bot.thread import notices, worktree_replies
from bot.tree.clone import trash
from bot.tree.clone.clone import CloneLock
from bot.tree.rescue.restore import RestoreRefusedError, restore


async def restore_worktree(ctx: NodeContext, lock: CloneLock, operation: Operation) -> Outcome:
    """Bring back the latest rescue; a removed worktree is made again for it."""
    rescue = await persist(ctx.pool, _rescued_for, operation)
    if rescue is None:
        return Outcome("done", worktree_replies.NOTHING_TO_RESTORE)
    if rescue.node != ctx.node:
        words = worktree_replies.rescued_on(rescue.id, rescue.node_name)
        return Outcome("failed", words, notices.rescued_on(rescue.node_name))
    if operation.worktree.state == "removed":
        if not await persist(ctx.pool, worktrees.reserve_again, operation.worktree.id, rescue.conversations):
            return failed(operation, *worktree_replies.PATH_TAKEN)
        operation = replace(operation, worktree=replace(operation.worktree, state="reserved"))
    path = ctx.directory(operation.worktree.path)
    sha = await lock.clone.commit_at(rescue.ref) if rescue.ref else None
    if rescue.ref is not None and sha is None:
        return failed(operation, *worktree_replies.COMMIT_GONE)
    made = await make(ctx, lock, operation, sha)
    directory = trash.kept_folder(ctx.data_dir) / rescue.kept if rescue.kept else None
    record_made, is_restored = record_checkout(operation, made), True

    async def write_rows(connection: Connection) -> None:
        await record_made(connection)
        if is_restored:
            await rescues.mark_restored(connection, rescue.id, ctx.clock())
        if directory is not None and not directory.exists():  # it is back, or gone: nothing is left to restore
            await rescues.forget_directory(connection, rescue.id)

    try:
        restored = await restore(lock, path, made.branch, sha, directory, operation.id)
    except RestoreRefusedError as refused:
        is_restored = False
        words = worktree_replies.not_restored(refused.obstacle, refused.names)
        if directory is not None and directory.exists():
            words += f" {worktree_replies.kept_whole(directory.name)}"
        why = worktree_replies.restore_obstacle(refused.obstacle, refused.names)
        return Outcome("failed", words, notices.restore_refused_before_turn(why), write_rows)
    words = worktree_replies.was_restored(restored.back, made.branch, restored.elsewhere)
    return Outcome("done", words, notices.restored_before_turn(restored.back), write_rows)


async def _rescued_for(connection: Connection, operation: Operation) -> Rescue | None:
    """Return what was rescued last by the thread that asked.

    Before a turn it is what that must find; for an operator it is the one that was named, or the worktree's.
    """
    if operation.rescue_id is not None:
        return await rescues.with_id(connection, operation.rescue_id)
    if operation.turn_conversation_id is not None:
        return await rescues.pending_restore(connection, operation.turn_conversation_id)
    if operation.conversation_id is not None:
        return next(iter(await rescues.of_conversation(connection, operation.conversation_id, 1)), None)
    return next(iter(await rescues.of_worktree(connection, operation.worktree.id)), None)
