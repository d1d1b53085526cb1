"""The care of a node's clones in a sweep: they are packed."""

import asyncio
from datetime import timedelta

import structlog

from bot.clones.clone import clone_lock
from bot.clones.packing import pack, pack_whole
from bot.git.errors import GitError
from bot.git.refs import InvalidNameError
from bot.maintenance.repair import folders_on_disk
from bot.node.context import NodeContext
from bot.store import clones

_log = structlog.get_logger()


async def care_for_clones(ctx: NodeContext, reserve_bytes: int) -> None:
    """Pack every clone of this node; whole where that is due and no turn of the repository runs.

    What fails is logged and tried again next time. Raises only what a database raises that is away.
    """
    for folder in sorted(await asyncio.to_thread(folders_on_disk, ctx.data_dir)):
        try:
            await _care_for(ctx, folder, reserve_bytes)
        except (GitError, OSError, InvalidNameError) as problem:
            _log.warning("clone-not-packed", clone=folder, error=str(problem))


async def _care_for(ctx: NodeContext, folder: str, reserve_bytes: int) -> None:
    clone = ctx.clone(folder)
    if not await asyncio.to_thread((clone.path / "objects" / "pack").is_dir):
        return
    async with clone_lock(clone) as lock:
        await pack(lock)
        async with ctx.pool.acquire() as connection:
            use = await clones.use_of(connection, folder, ctx.node, ctx.clock() - timedelta(days=7))
        if use is not None and not use.busy:
            await pack_whole(lock, use.default_branch, reserve_bytes)
