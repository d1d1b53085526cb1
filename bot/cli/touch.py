"""An operator says that a worktree is still used: by its row and by the file beside it."""

import asyncio
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from bot.clones import metadata
from bot.node.context import NodeContext
from bot.store import retention


async def touch(ctx: NodeContext, worktree_id: int) -> bool:
    """Counts the worktree as used now; False where it is not there. Raises OSError."""
    now = ctx.clock()
    async with ctx.pool.acquire() as connection:
        path = await retention.touch(connection, worktree_id, now)
    if path is None:
        return False
    await asyncio.to_thread(_touch_metadata, Path(path), now)
    return True


def _touch_metadata(path: Path, now: datetime) -> None:
    known = metadata.read(path)
    if isinstance(known, metadata.Metadata):
        metadata.write(path, replace(known, updated_at=now))
