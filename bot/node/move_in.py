"""When a node starts: its rows and git's records follow DATA_DIR to where it is now."""

import asyncio
import os
from pathlib import Path, PurePath

import structlog

from bot.clones.clone import clone_lock
from bot.failpoints import reached
from bot.git.errors import GitError
from bot.git.refs import InvalidNameError
from bot.model import worktree_path
from bot.node.context import NodeContext
from bot.node.identity import record
from bot.node.transactions import persist
from bot.store import nodes
from bot.store.database import Connection
from bot.worktrees.relocate import registered_below, relocate

_log = structlog.get_logger()


async def move_in(ctx: NodeContext, was_at: Path) -> None:
    """Make absolute paths of an older version relative, and connect the worktrees of a DATA_DIR that was moved.

    What fails is logged: such a worktree is made again by its next turn.
    """
    here = await asyncio.to_thread(ctx.data_dir.resolve)

    async def follow(connection: Connection) -> list[tuple[str, Path, Path]]:
        moved: list[tuple[str, Path, Path]] = []
        for worktree, path, folder in await nodes.absolute_paths(connection, ctx.node):
            relative = await asyncio.to_thread(relative_path, ctx.data_dir, Path(path), folder)
            if relative is not None and await nodes.set_path(connection, worktree, relative):
                moved.append((folder, Path(path), here / relative))
        await nodes.make_orphans_relative(connection, ctx.node, str(ctx.data_dir))
        if was_at != here:
            known = await nodes.paths(connection, ctx.node)
            moved += [(folder, was_at / path, here / path) for folder, path in known]
        return moved

    for folder, old, new in await persist(ctx.pool, follow):
        await _connect(ctx, folder, old, new)
    if was_at != here:
        for folder, path in await asyncio.to_thread(_registered, ctx, was_at):
            await _connect(ctx, folder, was_at / path, here / path)
    await asyncio.to_thread(record, ctx.data_dir, ctx.node)


def _registered(ctx: NodeContext, was_at: Path) -> list[tuple[str, PurePath]]:
    """Return (folder of the clone, path in DATA_DIR) of what git still knows at the old place: no row names it."""
    clones = ((f"{clone.parent.name}/{clone.stem}", clone) for clone in ctx.data_dir.glob("repos/*/*.git"))
    return [(folder, path) for folder, clone in clones for path in registered_below(clone, was_at)]


async def _connect(ctx: NodeContext, folder: str, old: Path, new: Path) -> None:
    try:
        async with clone_lock(ctx.clone(folder)) as lock:
            if await asyncio.to_thread(relocate, lock, old, new):
                _log.info("worktree-moved", old=str(old), new=str(new))
                reached("worktree-moved")
    except (GitError, InvalidNameError, OSError) as problem:
        _log.warning("worktree-not-moved", old=str(old), new=str(new), problem=str(problem))


def relative_path(data_dir: Path, path: Path, folder: str) -> str | None:
    """Return the path of a worktree in DATA_DIR for an absolute one; None for one that is in another DATA_DIR."""
    for root, full in ((data_dir, path), (data_dir.resolve(), path.parent.resolve() / path.name)):
        if full.is_relative_to(root):
            return str(full.relative_to(root))
    wanted = worktree_path(folder, path.name)
    if not str(path).endswith(f"/{wanted}"):
        return None
    before = Path(str(path).removesuffix(wanted))
    has_moved = os.path.lexists(data_dir / wanted) and not os.path.lexists(path)
    return wanted if has_moved or not os.path.lexists(before / "worktrees") else None
