"""The disk space that a node takes, and what it leaves free: without that no worktree is made."""

import shutil
from pathlib import Path
from typing import Final

from bot.clones import trash
from bot.messages import reasons
from bot.node.context import NodeContext

BY_REPOSITORY: Final = {"clones": "repos", "worktrees": "worktrees"}
"""Kinds of what takes space, with their folders in DATA_DIR: these have a folder for each repository."""
FOLDERS: Final = {
    **BY_REPOSITORY,
    "kept": "kept",
    "homes": "homes",
    "sandboxes": "private",
    "attachments": "attachments",
    "trash": "trash",
}

MOST_KEPT_TOLD: Final = 500


class DiskShortError(OSError):
    """Less than DISK_RESERVE_GB is free, so no worktree is made. Housekeeping removes what is least needed."""


def free_bytes(path: Path) -> int:
    """Return the free space of the file system of `path`. Raises OSError."""
    return shutil.disk_usage(path).free


def disk_use(data_dir: Path) -> dict[str, int]:
    """Return the bytes on disk of each kind. This takes seconds for many files: call it in a thread, now and then."""
    return {kind: trash.size_of(data_dir / folder) for kind, folder in FOLDERS.items()}


def kept_directories(data_dir: Path) -> list[dict[str, object]]:
    """Return the newest directories that are kept whole: name, bytes, and since when. Call it in a thread."""
    folder = trash.kept_folder(data_dir)
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    newest = sorted(((at, name) for name in names if (at := trash.kept_since(name)) is not None), reverse=True)
    return [
        {"name": name, "bytes": trash.size_of(folder / name), "created_at": at} for at, name in newest[:MOST_KEPT_TOLD]
    ]


def is_short(ctx: NodeContext) -> bool:
    """Return whether less is free than must stay free. Raises OSError."""
    return free_bytes(ctx.data_dir) < ctx.disk_reserve_bytes


def require_room(ctx: NodeContext) -> None:
    """Raise DiskShortError where no worktree may be made."""
    if is_short(ctx):
        raise DiskShortError(reasons.DISK_SHORT)
