"""The disk space that a node takes, and what it leaves free: without that no worktree is made."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bot.node.context import NodeContext
from bot.sandbox import trash
from bot.thread import reasons

_BY_REPOSITORY: Final = {"clones": "repos", "worktrees": "worktrees"}
"""Kinds of what takes space, with their folders in DATA_DIR: these have a folder for each repository."""
_FOLDERS: Final = {
    "kept": "kept",
    "homes": "homes",
    "sandboxes": "private",
    "attachments": "attachments",
    "checks": "checks",
    "logs": "logs",
    "trash": "trash",
    "database": "postgres",
}

MOST_KEPT_TOLD: Final = 500


class DiskShortError(OSError):
    """Less than DISK_RESERVE_GB is free, so no worktree is made. Housekeeping removes what is least needed."""


def free_bytes(path: Path) -> int:
    """Return the free space of the file system of `path`. Raises OSError."""
    return shutil.disk_usage(path).free


def spaces(data_dir: Path) -> Iterator[tuple[str, str | None, int]]:
    """Yield what takes space on the disk: its kind, its repository where it is of one, its bytes.

    This takes seconds for many files: call it in a thread, now and then.
    """
    for kind, folder in _BY_REPOSITORY.items():
        for place in sorted((data_dir / folder).glob("*/*")):
            if place.is_dir() and not place.is_symlink():
                yield kind, f"{place.parent.name}/{place.name.removesuffix('.git')}", trash.size_of(place)
    for kind, folder in _FOLDERS.items():
        yield kind, None, trash.size_of(data_dir / folder)


def disk_use(data_dir: Path) -> dict[str, int]:
    """Return the bytes on disk of each kind."""
    kinds: Counter[str] = Counter()
    for kind, _, size in spaces(data_dir):
        kinds[kind] += size
    return dict(kinds)


def kept_directories(data_dir: Path) -> list[dict[str, object]]:
    """Return the newest directories that are kept whole: name, bytes, and since when. Call it in a thread."""
    folder = trash.kept_folder(data_dir)
    dated = [(at, name) for name in trash.names_in(folder) if (at := trash.kept_since(name)) is not None]
    newest = sorted(dated, reverse=True)[:MOST_KEPT_TOLD]
    return [{"name": name, "bytes": trash.size_of(folder / name), "created_at": at} for at, name in newest]


def is_short(ctx: NodeContext) -> bool:
    """Return whether less is free than must stay free. Raises OSError."""
    return free_bytes(ctx.data_dir) < ctx.disk_reserve_bytes


def require_room(ctx: NodeContext) -> None:
    """Raise DiskShortError where no worktree may be made."""
    if is_short(ctx):
        raise DiskShortError(reasons.DISK_SHORT)
