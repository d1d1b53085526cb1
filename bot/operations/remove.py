"""Remove worktrees, one after the other, each under a claim, and record how that ended."""

import asyncio
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import structlog

from bot.clones import metadata, trash
from bot.clones.clone import CloneLock, clone_lock
from bot.clones.fetch import fetch
from bot.failpoints import reached
from bot.git.errors import GitError, GitProblem
from bot.git.refs import InvalidNameError
from bot.github.errors import GitHubError
from bot.messages import reasons, tracking, worktree_replies
from bot.messages.worktree_replies import Saved
from bot.node.context import NodeContext
from bot.node.transactions import persist
from bot.operations.shared import Outcome, failed, merged_head, record_rescue, rescue_size
from bot.reply import thread_comments
from bot.rescue.message import RescueLabel
from bot.store import conversations, operations, removals, rescues, worktrees
from bot.store.database import Connection
from bot.store.failures import is_transient
from bot.store.operations import ClaimedOperation
from bot.store.removals import ClaimedRemoval
from bot.store.turns import ClaimLostError
from bot.worktrees.remove import NotRemoved, Remote, Removed, remove, remove_if_clean

TRY_AGAIN_AFTER = timedelta(minutes=5)
# The repository cannot be reached any more, or the clone cannot be read: no commit counts as published.
_GONE = frozenset({GitProblem.NOT_FOUND, GitProblem.AUTH, GitProblem.CORRUPT})
_log = structlog.get_logger()


async def try_again(ctx: NodeContext) -> None:
    """Decide the removals again that failed a while ago when their threads were closed."""
    async with ctx.pool.acquire() as connection:
        for worktree_id in await removals.due_for_retry(connection, ctx.node, TRY_AGAIN_AFTER):
            async with connection.transaction():
                await conversations.release_worktree(connection, worktree_id)


async def remove_decided(ctx: NodeContext, worktree_id: int) -> None:
    """Remove a worktree whose removal is decided, and delete its bytes. What fails is left to the next job."""
    removal = await persist(ctx.pool, removals.claim, ctx.node, worktree_id)
    if removal is None:
        return
    try:
        result = await remove_claimed(ctx, removal)
    except (GitError, GitHubError, InvalidNameError, OSError) as problem:
        if is_transient(problem):
            raise  # the database's
        await _put_back(ctx, removal, str(problem))
        return
    if isinstance(result, Removed):
        await delete_trashed(result.trashed)


async def remove_worktree(ctx: NodeContext, operation: ClaimedOperation) -> Outcome:
    """Remove the worktree that the operation names, unless an earlier attempt did."""
    trashed: tuple[Path, ...] = ()
    if operation.worktree.state != "removed":
        removal = await persist(ctx.pool, _claim_removal, ctx.node, operation)
        if removal is None:
            return failed(operation, "something else needs it at this moment")
        result = await remove_claimed(ctx, removal)
        if isinstance(result, NotRemoved):
            return failed(operation, result.why)
        trashed = result.trashed
    saved = await persist(ctx.pool, _rescued_since, operation)
    return Outcome("done", worktree_replies.was_removed(saved, operation.others), trashed=trashed)


async def _claim_removal(connection: Connection, node: str, operation: ClaimedOperation) -> ClaimedRemoval | None:
    """Claim the removal for an operation; None while something else needs the worktree.

    Raises ClaimLostError where another process has the operation, or began to remove the worktree for it.
    """
    await operations.check_claim(connection, operation.claim)
    claimed = await removals.claim_for(connection, node, operation.worktree.id, "command", operation.id)
    if claimed is None and await worktrees.is_removing(connection, operation.worktree.id):
        raise ClaimLostError
    return claimed


async def _rescued_since(connection: Connection, operation: ClaimedOperation) -> Saved | None:
    """Return what was rescued since the operation was enqueued, also by an earlier attempt."""
    found = await rescues.of_worktree(connection, operation.worktree.id)
    last = [one for one in found if one.created_at == found[0].created_at >= operation.created_at]
    files, commits = sum(one.files for one in last), sum(one.commits for one in last)
    return Saved(files, commits, any(one.kept is not None for one in last)) if last else None


async def remove_claimed(ctx: NodeContext, removal: ClaimedRemoval) -> Removed | NotRemoved:
    """Remove a claimed worktree after a rescue, or if it is purged only where no rescue is needed; update its rows.

    Every step can be repeated; where an earlier attempt was cut off halfway and this one fails, the removal stays due.
    The bytes stay in the trash. Raises InvalidNameError.
    """
    path = ctx.directory(removal.worktree.path)
    label = RescueLabel(
        removal.worktree.id, removal.worktree.branch, removal.worktree.conversations, removal.worktree.updated_at
    )
    clone = ctx.clone(removal.worktree.folder)
    merged = await merged_head(ctx, removal.worktree)
    async with clone_lock(clone) as lock:
        counts = await _fetched(ctx, lock, removal)
        if isinstance(counts, NotRemoved):
            result: Removed | NotRemoved = counts
        elif not await _is_mine(ctx, removal):
            return NotRemoved("another process removes it")
        else:
            remote = Remote(removal.worktree.base_branch or removal.worktree.repository.default_branch, merged, counts)
            way = remove_if_clean if removal.removal == "purged" else remove
            result = await way(lock, path, label, remote)
    if isinstance(result, NotRemoved):
        kept = result
        if not os.path.lexists(path):  # noqa: ASYNC240
            await _put_back(ctx, removal, kept.why)
            return kept
        await persist(ctx.pool, _keep, ctx, removal, kept)
        log = _log.info if kept.in_use else _log.warning
        log("worktree-kept", path=removal.worktree.path, removal=removal.removal, why=kept.why)
        return kept
    await asyncio.to_thread(metadata.delete, path)
    reached("metadata-deleted")
    size = await rescue_size(clone, result.rescue, result.kept)
    removed = result
    await persist(ctx.pool, _write, ctx, removal, label, removed, size)
    _log.info(
        "worktree-removed",
        path=removal.worktree.path,
        removal=removal.removal,
        rescue=result.rescue.ref if result.rescue else None,
        kept=result.kept.name if result.kept else None,
        branch_deleted=result.branch_deleted,
    )
    return result


async def _put_back(ctx: NodeContext, removal: ClaimedRemoval, problem: str) -> None:
    async def write(connection: Connection) -> None:
        await removals.put_back(connection, removal, problem)
        await _tell(connection, removal, problem)

    await persist(ctx.pool, write)
    _log.warning("removal-failed", path=removal.worktree.path, removal=removal.removal, why=problem)


async def _keep(connection: Connection, ctx: NodeContext, removal: ClaimedRemoval, kept: NotRemoved) -> None:
    """Record that it stays, and tell the requests that wait for its removal."""
    await removals.keep(connection, removal, ctx.node, None if kept.in_use else kept.why)
    await _tell(connection, removal, kept.why)


async def _tell(connection: Connection, removal: ClaimedRemoval, why: str) -> None:
    words = tracking.waiting(reasons.removal_fails(why))
    for turn_id, thread_ref, target in await removals.blocked(connection, removal.worktree.id):
        await thread_comments.track(connection, thread_ref, turn_id, target, words)


async def delete_trashed(trashed: Sequence[Path]) -> int:
    """Delete what removals left in the trash; return the bytes freed. What is left goes when the trash is emptied."""
    return sum([await trash.delete(place) for place in trashed])


async def _fetched(ctx: NodeContext, lock: CloneLock, removal: ClaimedRemoval) -> bool | NotRemoved:
    """Fetch; False where no commit counts as published, NotRemoved while GitHub cannot be asked."""
    url = f"{ctx.server_url}/{removal.worktree.repository.full_name}.git"
    try:
        await lock.clone.run("rev-parse", "--git-dir")
        # The repository may have been renamed, and its old name may be another repository's.
        await lock.clone.run("config", "--local", "--replace-all", "remote.origin.url", url)
        await fetch(lock)
    except GitError as error:
        if error.problem not in _GONE:
            return NotRemoved(f"GitHub could not be asked what it has: {error}")
        _log.warning("published-commits-unknown", path=removal.worktree.path, why=str(error))
        return False
    return True


async def _is_mine(ctx: NodeContext, removal: ClaimedRemoval) -> bool:
    async with ctx.pool.acquire() as connection:
        return await removals.lock_claimed(connection, removal)


async def _write(
    connection: Connection, ctx: NodeContext, removal: ClaimedRemoval, label: RescueLabel, result: Removed, size: int
) -> None:
    """Record the rescue and the end of the removal in the caller's transaction; nothing if the claim was lost."""
    if await removals.lock_claimed(connection, removal):
        await record_rescue(connection, label, result.rescue, result.kept, size)
        await removals.finish(connection, removal, ctx.node)
