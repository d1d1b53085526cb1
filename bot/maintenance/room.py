"""Make room while the disk is short: what is least needed goes first."""

import asyncio
from datetime import timedelta

import structlog

from bot.clones import trash
from bot.git.errors import GitError
from bot.git.refs import InvalidNameError
from bot.node.context import NodeContext
from bot.node.room import free_bytes, is_short
from bot.operations.remove import delete_trashed, remove_claimed
from bot.store import removals, retention
from bot.store.retention import Candidate
from bot.worktrees.remove import Removed
from bot.worktrees.summary import foreign_lock

IDLE = timedelta(days=1)
"""Worktrees that were used since then stay."""
_log = structlog.get_logger()


async def make_room(ctx: NodeContext) -> None:
    """While the disk is short, empty the trash and remove unused worktrees that hold nothing of their own, the oldest
    first: their conversations keep them, and the next request makes them again.

    What fails is logged. Raises only what a database raises that is away.
    """
    if not is_short(ctx):
        return
    freed = await trash.empty_trash(ctx.data_dir)
    removed = 0
    async with ctx.pool.acquire() as connection:
        idle = await retention.candidates(connection, ctx.node, ctx.clock() - IDLE)
    for candidate in idle:
        if not is_short(ctx):
            break
        if candidate.busy or candidate.worktree.state != "ready":
            continue
        try:
            bytes_of_one = await _purge(ctx, candidate)
        except (GitError, OSError, InvalidNameError) as problem:
            _log.warning("prune-error", worktree=candidate.worktree.id, error=str(problem))
            continue
        freed += bytes_of_one or 0
        removed += bytes_of_one is not None
    _log.warning("disk-short", free=free_bytes(ctx.data_dir), removed=removed, freed=freed)


async def _purge(ctx: NodeContext, candidate: Candidate) -> int | None:
    """Remove a worktree that is clean and pushed; return the bytes freed, None if it stays."""
    worktree = candidate.worktree
    if await asyncio.to_thread(foreign_lock, ctx.clone(worktree.folder).path, ctx.directory(worktree.path)) is not None:
        return None
    async with ctx.pool.acquire() as connection:
        claimed = await removals.claim_for(
            connection, ctx.node, worktree.id, "purged", last_activity=worktree.updated_at
        )
    if claimed is None:
        return None
    result = await remove_claimed(ctx, claimed)
    if isinstance(result, Removed):
        return await delete_trashed(result.trashed)
    # An attempt is no activity.
    async with ctx.pool.acquire() as connection:
        await retention.set_activity(connection, worktree.id, worktree.updated_at)
    return None
