"""The disk space that a node leaves free: without it no worktree is made."""

import shutil
from pathlib import Path

from bot.messages import reasons
from bot.node.context import NodeContext


class DiskShortError(OSError):
    """Less than DISK_RESERVE_GB is free, so no worktree is made. Housekeeping removes what is least needed."""


def free_bytes(path: Path) -> int:
    """Return the free space of the file system of `path`. Raises OSError."""
    return shutil.disk_usage(path).free


def is_short(ctx: NodeContext) -> bool:
    """Return whether less is free than must stay free. Raises OSError."""
    return free_bytes(ctx.data_dir) < ctx.disk_reserve_bytes


def require_room(ctx: NodeContext) -> None:
    """Raise DiskShortError where no worktree may be made."""
    if is_short(ctx):
        raise DiskShortError(reasons.DISK_SHORT)
