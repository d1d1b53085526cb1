"""The care of a node's clones: they are packed, and removed when unused."""

import asyncio
from datetime import timedelta

import structlog

from bot.clones import trash
from bot.clones.admin import admin_directories
from bot.clones.clone import Clone, clone_lock
from bot.clones.packing import forget_fetched, pack, pack_whole
from bot.git import refs
from bot.git.errors import GitError
from bot.maintenance.repair import folders_on_disk
from bot.node.context import NodeContext
from bot.rescue.stored import list_rescues
from bot.store import clones

_log = structlog.get_logger()


async def care_for_clones(ctx: NodeContext, unused: timedelta) -> None:
    """Remove the clones that were `unused` for that long, and pack the others; whole where that is due and no turn of
    the repository runs.

    What fails is logged and tried again next time. Raises only what a database raises that is away.
    """
    for folder, clone in await _clones(ctx):
        try:
            if await _remove_if_unused(ctx, folder, clone, unused):
                continue
            async with clone_lock(clone) as lock:
                async with ctx.pool.acquire() as connection:
                    use = await clones.use_of(connection, folder, ctx.node)
                if use is not None:
                    await forget_fetched(lock, use.pull_request_heads)
                await pack(lock)
                if use is not None and not use.busy:
                    await pack_whole(lock, use.default_branch, ctx.disk_reserve_bytes)
        except (GitError, OSError) as problem:
            _log.warning("clone-not-packed", clone=folder, error=str(problem))


async def _remove_if_unused(ctx: NodeContext, folder: str, clone: Clone, unused: timedelta) -> bool:
    """Remove a clone without worktrees, rescues, unpublished commits and recent threads. Raises GitError, OSError."""
    since = ctx.clock() - unused
    async with ctx.pool.acquire() as connection:
        if not await clones.is_unused(connection, folder, ctx.node, since):
            return False
    async with clone_lock(clone) as lock:
        # A turn may have come first. Work without a row is found in the clone.
        async with ctx.pool.acquire() as connection:
            is_unused = await clones.is_unused(connection, folder, ctx.node, since)
        rescued, registered = await list_rescues(lock.clone), admin_directories(clone.path)
        if not is_unused or rescued or registered or await lock.clone.unpublished("--branches"):
            return False
        trashed = await asyncio.to_thread(trash.move_to_trash, ctx.data_dir, clone.path)
    freed = await trash.delete(trashed) if trashed is not None else 0
    _log.info("clone-removed", clone=folder, bytes=freed)
    return True


async def _clones(ctx: NodeContext) -> list[tuple[str, Clone]]:
    """Return the folder and the clone of each repository that has one on this node."""
    found: list[tuple[str, Clone]] = []
    for folder in sorted(await asyncio.to_thread(folders_on_disk, ctx.data_dir)):
        try:
            clone = ctx.clone(folder)
        except refs.InvalidNameError as problem:
            _log.warning("clone-unreadable", clone=folder, error=str(problem))
            continue
        if await asyncio.to_thread((clone.path / "objects" / "pack").is_dir):
            found.append((folder, clone))
    return found
