"""Removes the worktrees that nobody needs, one after the other, under a claim each."""

import asyncio
from pathlib import Path

import structlog

from bot.run.workshop import Workshop
from bot.run.worktrees import metadata, refs
from bot.run.worktrees.clone import clone_lock, fetch
from bot.run.worktrees.git import GitError
from bot.run.worktrees.removal import Kept, Removed, remove
from bot.store import removals
from bot.store.removals import ClaimedRemoval

_log = structlog.get_logger()


async def remove_all(shop: Workshop, worker: str) -> None:
    """Removes every worktree of this node that is to go; one that still holds work is kept, and the log says so."""
    while True:
        async with shop.pool.acquire() as connection:
            removal = await removals.claim_next(connection, shop.node, worker)
        if removal is None:
            return
        result = await _remove(shop, removal)
        async with shop.pool.acquire() as connection:
            if isinstance(result, Removed):
                await removals.removed(connection, removal, shop.node)
                _log.info("worktree-removed", path=removal.path, branch_deleted=result.branch_deleted)
            else:
                await removals.kept(connection, removal, shop.node)
                _log.warning("worktree-kept", path=removal.path, why=result.why)


async def _remove(shop: Workshop, removal: ClaimedRemoval) -> Removed | Kept:
    path = Path(removal.path)
    async with clone_lock(shop.clone(removal.folder)) as lock:
        try:
            await fetch(lock)
        except GitError as error:
            return Kept(f"GitHub could not be asked what it has: {error}")
        rescue = refs.rescue_ref(str(removal.worktree_id), shop.clock())
        result = await remove(lock, path, removal.branch, rescue)
    if isinstance(result, Removed):
        await asyncio.to_thread(metadata.delete, path)
    return result
