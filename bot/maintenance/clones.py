"""The care of a node's clones: they are packed, removed when unused, and the busy ones have spares."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Literal

import structlog

from bot.clones import holding, trash
from bot.clones.admin import admin_directories
from bot.clones.clone import Clone, clone_lock
from bot.clones.packing import LARGE_REPOSITORY_FILES, forget_fetched, pack, pack_whole
from bot.git import refs
from bot.git.errors import GitError
from bot.maintenance.repair import folders_on_disk
from bot.node.context import NodeContext
from bot.node.room import free_bytes
from bot.rescue.stored import list_rescues
from bot.store import clones
from bot.store.clones import CloneUse
from bot.worktrees.spares import drop_spares, keep_spares

_BUSY_FOR = timedelta(days=7)
_BUSY_WORKTREES = 2
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
                use = await _use_of(ctx, folder)
                if use is not None:
                    async with ctx.pool.acquire() as connection:
                        heads = await clones.pull_request_heads(connection, folder, ctx.node)
                    await forget_fetched(lock, heads)
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
    await drop_spares(clone)
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


async def keep_all_spares(
    ctx: NodeContext, spares: int | Literal["auto"], counted: dict[Path, tuple[str, int]]
) -> None:
    """Keep spares of the clones that get new worktrees, and drop all others; none where the disk is short.

    `counted` remembers a commit of each clone and its number of files, so that git is asked once per commit. What fails
    is logged and tried again next time. Raises only what a database raises that is away.
    """
    for folder, clone in await _clones(ctx):
        use = await _use_of(ctx, folder)
        try:
            commit = await _commit_to_keep(ctx, clone, use, spares, counted)
            if commit is None:
                await drop_spares(clone)
            else:
                await keep_spares(clone, 1 if spares == "auto" else spares, commit)
        except (GitError, OSError) as problem:
            _log.warning("spares-not-kept", clone=folder, error=str(problem))


async def _commit_to_keep(
    ctx: NodeContext,
    clone: Clone,
    use: CloneUse | None,
    spares: int | Literal["auto"],
    counted: dict[Path, tuple[str, int]],
) -> str | None:
    """Return the tip of the default branch, where spares are wanted. Raises GitError, OSError."""
    is_busy = use is not None and use.made_since >= (_BUSY_WORKTREES if spares == "auto" else 1)
    if use is None or use.default_branch is None or not is_busy or spares == 0:
        return None
    if free_bytes(ctx.data_dir) < 2 * ctx.disk_reserve_bytes:
        return None
    ref = refs.remote(use.default_branch)
    tip = (await asyncio.to_thread(holding.tips, clone.path, ref)).get(ref)
    if tip is None:
        return None
    commit, files = counted.get(clone.path, (None, 0))
    if commit != tip:
        files = (await clone.run("ls-tree", "-r", "-z", "--name-only", tip)).stdout.count(b"\0")
        counted[clone.path] = (tip, files)
    return tip if files >= LARGE_REPOSITORY_FILES else None


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


async def _use_of(ctx: NodeContext, folder: str) -> CloneUse | None:
    async with ctx.pool.acquire() as connection:
        return await clones.use_of(connection, folder, ctx.node, ctx.clock() - _BUSY_FOR)
