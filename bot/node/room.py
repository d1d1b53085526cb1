"""The disk space that a node takes, and what it leaves free: without that no worktree is made."""

import shutil
from pathlib import Path
from typing import Final

from bot.clones import trash
from bot.messages import reasons
from bot.node.context import NodeContext

BY_REPOSITORY: Final = {"clones": "repos", "worktrees": "worktrees", "spares": "spares"}
"""Kinds of what takes space, with their folders in DATA_DIR: these have a folder for each repository."""
FOLDERS: Final = {
    **BY_REPOSITORY,
    "kept": "kept",
    "homes": "homes",
    "sandboxes": "private",
    "attachments": "attachments",
    "trash": "trash",
}


class DiskShortError(OSError):
    """Less than DISK_RESERVE_GB is free, so no worktree is made. Housekeeping removes what is least needed."""


def free_bytes(path: Path) -> int:
    """Return the free space of the file system of `path`. Raises OSError."""
    return shutil.disk_usage(path).free


def disk_use(data_dir: Path) -> dict[str, int]:
    """Return the bytes on disk of each kind. This takes seconds for many files: call it in a thread, now and then."""
    return {kind: trash.size_of(data_dir / folder) for kind, folder in FOLDERS.items()}


def is_short(ctx: NodeContext) -> bool:
    """Return whether less is free than must stay free. Raises OSError."""
    return free_bytes(ctx.data_dir) < ctx.disk_reserve_bytes


def require_room(ctx: NodeContext) -> None:
    """Raise DiskShortError where no worktree may be made."""
    if is_short(ctx):
        raise DiskShortError(reasons.DISK_SHORT)
