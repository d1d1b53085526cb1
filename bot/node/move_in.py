"""Connect the worktrees of a DATA_DIR that was moved with their clones: each names the other by its absolute path.

`git worktree repair` gives a link to the clone to an emptied directory too, whose files would count as deleted by an
agent. Where DATA_DIR was copied, it changes the clone at the old place.
"""

import asyncio
import os
import secrets
from pathlib import Path

import structlog

from bot.clones.admin import admin_directories, recorded, write
from bot.clones.clone import clone_lock
from bot.failpoints import reached
from bot.node.context import NodeContext
from bot.node.identity import record

_log = structlog.get_logger()


async def move_in(ctx: NodeContext, was_at: Path) -> None:
    """Let git find the worktrees that were below `was_at`, a real path, where DATA_DIR is now.

    What fails is logged: such a worktree is made again by its next turn.
    """
    here = await asyncio.to_thread(ctx.data_dir.resolve)
    if was_at == here:
        return
    for path in await asyncio.to_thread(lambda: sorted(here.glob("repos/*/*.git"))):
        async with clone_lock(ctx.clone(f"{path.parent.name}/{path.stem}")):
            await asyncio.to_thread(_connect, path, was_at, here)
    await asyncio.to_thread(record, ctx.data_dir, ctx.node)


def _connect(clone: Path, was_at: Path, here: Path) -> None:
    """Connect the worktrees of one clone, each of which may be gone or replaced. Every step can be repeated."""
    for admin in admin_directories(clone):
        old = Path(recorded(admin / "gitdir"))
        if not old.is_relative_to(was_at):
            continue
        new = here / old.relative_to(was_at)
        try:
            if recorded(new).endswith(f"/worktrees/{admin.name}"):
                # Beside the worktree, so that nothing is left in it.
                making = new.parent.with_name(f".{new.parent.name}.{secrets.token_hex(4)}")
                making.write_text(f"gitdir: {admin}\n")
                making.rename(new)
            write(admin / "gitdir", str(new))
            _log.info("worktree-moved", old=os.fspath(old.parent), new=os.fspath(new.parent))
            reached("worktree-moved")
        except OSError as problem:
            _log.warning("worktree-not-moved", path=os.fspath(new.parent), problem=str(problem))
