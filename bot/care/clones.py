"""The care of a node's clones: packed, freed of old LFS objects, removed when unused; their worktrees share blocks."""

import asyncio
from datetime import timedelta
from threading import Event

import structlog

from bot.care import reconciliation_rows as reconciliation
from bot.care import upkeep_rows as upkeep
from bot.care.repair import clones_on_disk
from bot.node.context import NodeContext
from bot.tree.clone import trash
from bot.tree.clone.admin import admin_directories, holder
from bot.tree.clone.clone import Clone, CloneLock, clone_lock
from bot.tree.clone.fetch import complete
from bot.tree.clone.packing import forget_fetched, pack, pack_new, pack_whole, was_packed
from bot.tree.clone.shared_blocks import share_blocks
from bot.tree.git import refs
from bot.tree.git.errors import GitError
from bot.tree.lfs.objects import delete_old
from bot.tree.rescue.message import list_rescues

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
            async with clone_lock(clone) as lock:
                use = await upkeep.use_of(ctx.pool, folder, ctx.node)
                if clone.is_shallow and use is not None and use.busy:
                    continue  # its turn fetches the history, once its agent has begun
                if use is not None:
                    await forget_fetched(lock, use.pull_request_heads)
                await complete(lock)
                await _delete_old_branches(ctx, folder, lock)
                await pack(lock)
                if use is not None and not use.busy:
                    await pack_whole(lock, use.default_branch, ctx.disk_reserve_bytes)
                    if freed := await asyncio.to_thread(delete_old, lock, (ctx.clock() - LFS_OBJECTS_KEPT).timestamp()):
                        _log.info("lfs-objects-deleted", clone=folder, bytes=freed)
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
        use = None if was_packed(clone) else await upkeep.use_of(ctx.pool, folder, ctx.node)
        try:
            if use is not None and clone.path.is_dir() and not clone.is_shallow:
                await pack_new(clone, use.default_branch, ctx.disk_reserve_bytes)
        except (GitError, OSError) as problem:
            _log.warning("clone-not-packed", clone=folder, error=str(problem))


async def _delete_old_branches(ctx: NodeContext, folder: str, lock: CloneLock) -> None:
    """Delete the local branches that no worktree has and whose commits GitHub or a rescue has. Raises GitError."""
    async with ctx.pool.acquire() as connection:
        used = {refs.local(branch) for branch in await reconciliation.branches_in(connection, folder, ctx.node)}
    elsewhere = ("--remotes=origin", f"--glob={refs.FETCHED_PREFIX}*", f"--glob={refs.RESCUE_PREFIX}*")
    for branch, tip in (await lock.clone.refs("refs/heads")).items():
        is_held = await asyncio.to_thread(holder, lock.clone.path, branch.removeprefix("refs/heads/"))
        if branch not in used and not is_held and not await lock.clone.count(tip, "--not", *elsewhere):
            await lock.clone.run("update-ref", "-d", branch, tip)
            _log.info("branch-deleted", clone=folder, branch=branch, tip=tip)


async def _remove_if_unused(ctx: NodeContext, folder: str, clone: Clone, unused: timedelta) -> bool:
    """Remove a clone without worktrees, rescues, unpublished commits and recent threads. Raises GitError, OSError."""
    since = ctx.clock() - unused
    if not await upkeep.is_unused(ctx.pool, folder, ctx.node, since):
        return False
    async with clone_lock(clone) as lock:
        # A turn may have come first. Work without a row is found in the clone.
        is_unused = await upkeep.is_unused(ctx.pool, folder, ctx.node, since)
        rescued, registered = await list_rescues(lock.clone), admin_directories(clone.path)
        if not is_unused or rescued or registered or await lock.clone.unpublished("--branches"):
            return False
        trashed = await asyncio.to_thread(trash.move_to_trash, ctx.data_dir, clone.path)
    freed = await trash.delete(trashed) if trashed is not None else 0
    _log.info("clone-removed", clone=folder, bytes=freed)
    return True
