"""Bring back what was rescued last, into a worktree without changes."""

from dataclasses import replace

from bot.clones import trash
from bot.clones.clone import clone_lock
from bot.messages import notices, worktree_replies
from bot.messages.worktree_replies import Saved
from bot.node.context import NodeContext
from bot.node.transactions import persist
from bot.operations.create import make, record_checkout
from bot.operations.shared import Outcome, failed
from bot.rescue.restore import RestoreRefused, restore
from bot.store import operations, rescues, worktrees
from bot.store.database import Connection
from bot.store.operations import ClaimedOperation
from bot.store.rescues import Rescue


async def restore_worktree(ctx: NodeContext, operation: ClaimedOperation) -> Outcome:
    """Bring back the latest rescue; a removed worktree is made again for it."""
    found = await persist(ctx.pool, _rescued_for, operation)
    if not found:
        return Outcome("done", worktree_replies.NOTHING_TO_RESTORE)
    commit = next((one.ref for one in found if one.ref is not None), None)
    kept = next((one.kept for one in found if one.kept is not None), None)
    if found[0].node != ctx.node:
        words = worktree_replies.rescued_on(found[0].id, found[0].node_name)
        return Outcome("failed", words, notices.rescued_on(found[0].node_name))
    if operation.worktree.state == "removed":
        if not await persist(ctx.pool, _revive, operation, found[0]):
            return failed(operation, "another worktree is at its path", "Nothing was changed.")
        operation = replace(operation, worktree=replace(operation.worktree, state="reserved"))
    path = ctx.directory(operation.worktree.path)
    async with clone_lock(ctx.clone(operation.worktree.folder)) as lock:
        await persist(ctx.pool, operations.check_claim, operation.claim)
        sha = await lock.clone.commit_at(commit) if commit else None
        if commit is not None and sha is None:
            return failed(operation, "the rescued commit is not in the clone any more", "Nothing was changed.")
        made = await make(ctx, lock, operation, sha)
        if isinstance(made, Outcome):
            return made
        directory = trash.kept_folder(ctx.data_dir) / kept if kept else None
        operation_id = operation.claim.operation_id
        restored = await restore(lock, path, made.branch, sha, directory, operation_id)
    write_row = record_checkout(operation, made)
    if isinstance(restored, RestoreRefused):
        words = worktree_replies.not_restored(restored.obstacle, restored.names)
        words += f" {worktree_replies.kept_whole(kept)}" if kept is not None else ""
        why = worktree_replies.restore_obstacle(restored.obstacle, restored.names)
        return Outcome("failed", words, notices.restore_refused_before_turn(why), write_row)
    back, now = Saved(restored.files, restored.commits, restored.whole), ctx.clock()

    async def write(connection: Connection) -> None:
        await write_row(connection)
        for one in found:
            await rescues.mark_restored(connection, one.id, now)

    words = worktree_replies.was_restored(back, made.branch, restored.elsewhere)
    return Outcome("done", words, notices.restored_before_turn(back), write)


async def _rescued_for(connection: Connection, operation: ClaimedOperation) -> list[Rescue]:
    """Return what was rescued last by the thread that asked: a commit, a directory that was kept, or both.

    Before a turn it is what that must find; for an operator it is the one that was named, or the worktree's.
    """
    if operation.rescue_id is not None:
        latest = await rescues.with_id(connection, operation.rescue_id)
    elif operation.turn_conversation_id is not None:
        latest = await rescues.pending_restore(connection, operation.turn_conversation_id)
    elif operation.conversation_id is not None:
        latest = next(iter(await rescues.of_conversation(connection, operation.conversation_id, 1)), None)
    else:
        latest = next(iter(await rescues.of_worktree(connection, operation.worktree.id)), None)
    if latest is None:
        return []
    of_worktree = await rescues.of_worktree(connection, latest.worktree_id)
    return [one for one in of_worktree if one.created_at == latest.created_at]


async def _revive(connection: Connection, operation: ClaimedOperation, rescue: Rescue) -> bool:
    await operations.check_claim(connection, operation.claim)
    return await worktrees.reserve_again(connection, operation.worktree.id, rescue.conversations)
