"""The care of a node's clones: packed, freed of old LFS objects, removed when unused; their worktrees share blocks."""

import asyncio
from datetime import timedelta
from threading import Event

import structlog

from bot.care import reconciliation_rows as reconciliation
from bot.care import upkeep_rows as upkeep
from bot.care.repair import clones_on_disk
from bot.node.context import NodeContext
from bot.sandbox import trash
from bot.tree import Clone, GitError, open_clone, pack_new, share_blocks

LFS_OBJECTS_KEPT = timedelta(days=30)
"""How long a clone keeps an object of Git LFS since it came."""
_log = structlog.get_logger()


async def care_for_clones(ctx: NodeContext, unused: timedelta) -> None:
    """Remove the clones that were `unused` for that long, and pack the others; whole where that is due and no turn of
    the repository runs.

    What fails is logged and tried again next time. Raises only what a database raises that is away.
    """
    for folder, clone in (await asyncio.to_thread(clones_on_disk, ctx)).items():
        try:
            if not await asyncio.to_thread((clone.path / "objects" / "pack").is_dir):
                continue
            if await _remove_if_unused(ctx, folder, clone, unused):
                continue
            async with open_clone(clone) as opened:
                use = await upkeep.use_of(ctx.pool, folder, ctx.node)
                if clone.is_shallow and use is not None and use.busy:
                    continue  # its turn fetches the history, once its agent has begun
                async with ctx.pool.acquire() as connection:
                    branches = await reconciliation.branches_in(connection, folder, ctx.node)
                await opened.tidy(use.pull_request_heads if use is not None else None, branches)
                if use is not None and not use.busy:
                    reserve, before = ctx.disk_reserve_bytes, ctx.clock() - LFS_OBJECTS_KEPT
                    await opened.pack_whole(use.default_branch, reserve, before)
        except (GitError, OSError) as problem:
            _log.warning("clone-not-packed", clone=folder, error=str(problem))


async def share_new_worktrees(ctx: NodeContext) -> None:
    """Let new worktrees share the disk blocks of others, where `can_share_blocks`. Agents may be at work in both."""
    over = Event()
    try:
        for folder, clone in (await asyncio.to_thread(clones_on_disk, ctx)).items():
            if shared := await asyncio.to_thread(share_blocks, clone.path, over):
                _log.info("blocks-shared", clone=folder, bytes=shared)
    finally:
        over.set()  # a thread cannot be cancelled


async def care_for_new_clones(ctx: NodeContext) -> None:
    """Pack the files of clones that were not packed yet, as above: the next worktree takes half the time."""
    for folder, clone in (await asyncio.to_thread(clones_on_disk, ctx)).items():
        use = None if clone.is_packed else await upkeep.use_of(ctx.pool, folder, ctx.node)
        try:
            if use is not None and clone.path.is_dir() and not clone.is_shallow:
                await pack_new(clone, use.default_branch, ctx.disk_reserve_bytes)
        except (GitError, OSError) as problem:
            _log.warning("clone-not-packed", clone=folder, error=str(problem))


async def _remove_if_unused(ctx: NodeContext, folder: str, clone: Clone, unused: timedelta) -> bool:
    """Remove a clone without worktrees, rescues, unpublished commits and recent threads. Raises GitError, OSError."""
    since = ctx.clock() - unused
    if not await upkeep.is_unused(ctx.pool, folder, ctx.node, since):
        return False
    async with open_clone(clone) as opened:
        # A turn may have come first. Work without a row is found in the clone.
        if not await upkeep.is_unused(ctx.pool, folder, ctx.node, since) or not await opened.is_empty():
            return False
        trashed = await asyncio.to_thread(trash.move_to_trash, ctx.data_dir, clone.path)
    freed = await trash.delete(trashed) if trashed is not None else 0
    _log.info("clone-removed", clone=folder, bytes=freed)
    return True
