"""Removes the worktrees that nobody needs, one after the other, under a claim each."""

import asyncio
from pathlib import Path

import structlog

from bot.run.grounds import Grounds
from bot.run.worktrees import metadata, refs
from bot.run.worktrees.clone import clone_lock, fetch
from bot.run.worktrees.git import GitError
from bot.run.worktrees.removal import Kept, Removed, remove
from bot.store import removals
from bot.store.removals import ClaimedRemoval

_log = structlog.get_logger()


async def remove_all(grounds: Grounds, worker: str) -> None:
    """Removes every worktree of this node that is to go; one that still holds work is kept, and the log says so."""
    while True:
        async with grounds.pool.acquire() as connection:
            removal = await removals.claim_next(connection, grounds.node, worker)
        if removal is None:
            return
        result = await _remove(grounds, removal)
        async with grounds.pool.acquire() as connection:
            if isinstance(result, Removed):
                await removals.removed(connection, removal, grounds.node)
                _log.info("worktree-removed", path=removal.path, branch_deleted=result.branch_deleted)
            else:
                await removals.kept(connection, removal, grounds.node)
                _log.warning("worktree-kept", path=removal.path, why=result.why)


async def _remove(grounds: Grounds, removal: ClaimedRemoval) -> Removed | Kept:
    path = Path(removal.path)
    async with clone_lock(grounds.clone(removal.folder)) as lock:
        try:
            await fetch(lock)
        except GitError as error:
            return Kept(f"GitHub could not be asked what it has: {error}")
        rescue = refs.rescue_ref(str(removal.worktree_id), grounds.clock())
        result = await remove(lock, path, removal.branch, rescue)
    if isinstance(result, Removed):
        await asyncio.to_thread(metadata.delete, path)
    return result
