"""Remove worktrees whose removal is decided, each under its clone's lock, and record how that ended."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path

import structlog

from bot.care import removal_rows as removals
from bot.care import retention_rows as retention
from bot.care.removal_rows import DecidedRemoval, Removal
from bot.failpoints import reached
from bot.github.errors import GitHubError, NotFound
from bot.model import WorktreeRow
from bot.node.context import NodeContext
from bot.node.repository_names import of_this_minute
from bot.node.rescues import merged_head, record_rescue, rescue_size
from bot.node.transactions import persist
from bot.refs import InvalidNameError
from bot.sandbox import trash
from bot.store import conversations
from bot.store.database import Connection
from bot.store.failures import is_transient
from bot.thread import reasons, thread_comments, tracking, worktree_replies
from bot.tree import GitError, GitProblem, Metadata, NotRemoved, OpenTree, Removed, RescueLabel

TRY_AGAIN_AFTER = timedelta(minutes=5)
USED_AGAIN = NotRemoved("It is used again, or is being removed already.", in_use=True)
Check = Callable[[], Awaitable[str | None]]
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
    try:
        result = await remove_now(ctx, worktree_id)
    except (GitError, GitHubError, InvalidNameError, OSError) as problem:
        if is_transient(problem):
            raise  # the database's
        await _put_back(ctx, worktree_id, str(problem))
        return
    if isinstance(result, Removed):
        await delete_trashed(result.trashed)


async def remove_idle(
    ctx: NodeContext, worktree: WorktreeRow, removal: Removal, reason_to_keep: Check | None = None
) -> Removed | NotRemoved:
    """Remove a worktree unless it was used since its row was read. One that stays is no more active than before.

    Raises GitError, OSError, InvalidNameError.
    """
    async with ctx.pool.acquire() as connection:
        decided = await removals.decide(connection, ctx.node, worktree.id, removal, last_activity=worktree.updated_at)
    if not decided:
        return USED_AGAIN
    reached("removal-decided")
    result = await remove_now(ctx, worktree.id, reason_to_keep)
    if isinstance(result, NotRemoved):
        await retention.set_activity(ctx.pool, worktree.id, worktree.updated_at)
    return result


async def remove_now(ctx: NodeContext, worktree_id: int, reason_to_keep: Check | None = None) -> Removed | NotRemoved:
    """Remove a worktree whose removal is decided, after a rescue; one that is purged only where it needs none.

    `reason_to_keep` is asked once more when nothing can start there any more. Every step can be repeated; where an
    earlier attempt was cut off halfway and this one fails, the removal stays due. The bytes stay in the trash.
    Raises GitError, OSError, InvalidNameError.
    """
    decided = await persist(ctx.pool, removals.decided, ctx.node, worktree_id)
    if decided is None:
        return USED_AGAIN
    merged = await merged_head(ctx, decided.worktree)
    async with ctx.tree(decided.worktree).open() as tree:
        return await take_now(ctx, tree, worktree_id, merged, reason_to_keep)


async def take_now(
    ctx: NodeContext, tree: OpenTree, worktree_id: int, merged: str | None, reason_to_keep: Check | None = None
) -> Removed | NotRemoved:
    """See `remove_now`; `merged` is the last commit that was merged of its branch."""
    # The lock is held until the rows tell the end: no other process removes it a second time.
    removal = await persist(ctx.pool, removals.begin, ctx.node, worktree_id)
    if removal is None:
        return USED_AGAIN
    worktree = removal.worktree
    label = RescueLabel(worktree.id, worktree.branch, removal.users, worktree.updated_at)
    why = await reason_to_keep() if reason_to_keep is not None else None
    result = NotRemoved(why, in_use=True) if why is not None else await _take(ctx, tree, removal, label, merged)
    if isinstance(result, NotRemoved):
        if os.path.lexists(tree.path):  # noqa: ASYNC240
            await persist(ctx.pool, _keep, ctx, removal, result)
            log = _log.info if result.in_use else _log.warning
            log("worktree-kept", path=worktree.path, removal=removal.removal, why=result.why)
        else:
            await _put_back(ctx, worktree.id, result.why)
        return result
    await asyncio.to_thread(Metadata.delete, tree.path)
    reached("metadata-deleted")
    size = await rescue_size(tree, result.rescue, result.kept)
    await persist(ctx.pool, _finish, ctx, removal, label, result, size)
    _log.info(
        "worktree-removed",
        path=worktree.path,
        removal=removal.removal,
        rescue=result.rescue.ref if result.rescue else None,
        kept=result.kept.name if result.kept else None,
        branch_deleted=result.branch_deleted,
    )
    return result


async def _take(
    ctx: NodeContext, tree: OpenTree, removal: DecidedRemoval, label: RescueLabel, merged: str | None
) -> Removed | NotRemoved:
    """Take the worktree from its path, after a fetch."""
    counts = await _fetched(ctx, tree, removal.worktree)
    if isinstance(counts, NotRemoved):
        return counts
    # A purge that was cut off found it clean before it moved the directory.
    is_purge = removal.removal == "purged" and await asyncio.to_thread(os.path.lexists, tree.path)
    base = removal.worktree.base_branch or removal.worktree.repository.default_branch
    return await tree.remove(label, base_branch=base, merged_head=merged, published=counts, only_clean=is_purge)


async def _finish(
    connection: Connection, ctx: NodeContext, removal: DecidedRemoval, label: RescueLabel, result: Removed, size: int
) -> None:
    await record_rescue(connection, label, result.rescue, result.kept, size)
    await removals.finish(connection, removal, ctx.node)


async def _put_back(ctx: NodeContext, worktree_id: int, problem: str) -> None:
    async def write(connection: Connection) -> None:
        await removals.put_back(connection, worktree_id, problem)
        await _tell(connection, worktree_id, problem)

    await persist(ctx.pool, write)
    _log.warning("removal-failed", worktree=worktree_id, why=problem)


async def _keep(connection: Connection, ctx: NodeContext, removal: DecidedRemoval, kept: NotRemoved) -> None:
    """Record that it stays, and tell the requests that wait for its removal."""
    await removals.keep(connection, removal, ctx.node, None if kept.in_use else kept.why)
    await _tell(connection, removal.worktree.id, kept.why)


async def _tell(connection: Connection, worktree_id: int, why: str) -> None:
    words = tracking.waiting(reasons.removal_fails(why))
    for turn in await removals.blocked(connection, worktree_id):
        await thread_comments.track(connection, turn.thread_ref, turn.id, turn.ask.target, words)


async def _fetched(ctx: NodeContext, tree: OpenTree, worktree: WorktreeRow) -> bool | NotRemoved:
    """Fetch; False where no commit counts as published, NotRemoved while GitHub cannot be asked."""
    try:
        await tree.clone.run("rev-parse", "--git-dir")
        repository = worktree.repository
        if ctx.github is not None:
            # It may have been renamed, and its old name may be another repository's.
            repository = await of_this_minute(ctx.pool, ctx.github, repository)
        url = f"{ctx.server_url}/{repository.full_name}.git"
        await tree.clone.run("config", "--local", "--replace-all", "remote.origin.url", url)
        await tree.fetch()
    except NotFound as gone:
        _log.warning("published-commits-unknown", path=worktree.path, why=str(gone))
        return False
    except GitHubError as error:
        return NotRemoved(worktree_replies.github_not_asked(error))
    except GitError as error:
        if error.problem not in _GONE:
            return NotRemoved(worktree_replies.github_not_asked(error))
        _log.warning("published-commits-unknown", path=worktree.path, why=str(error))
        return False
    return True


async def delete_trashed(trashed: Sequence[Path]) -> int:
    """Delete what removals left in the trash; return the bytes freed. What is left goes when the trash is emptied."""
    return sum([await trash.delete(place) for place in trashed])
