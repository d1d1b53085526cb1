"""Connect a worktree with its clone again after DATA_DIR was moved: both name the other by its absolute path."""

import secrets
import stat
from pathlib import Path, PurePath

from bot.clones.admin import admin_directories, real_path, recorded, write
from bot.clones.clone import CloneLock
from bot.rescue.restore import progress_file
from bot.sandbox.view import move_private


def registered_below(clone: Path, folder: Path) -> list[PurePath]:
    """Return the paths, relative to `folder`, of the worktrees that git has registered below it, also without a row."""
    named = (PurePath(recorded(admin / "gitdir")).parent for admin in admin_directories(clone))
    return [path.relative_to(folder) for path in named if path.is_relative_to(folder)]


def relocate(lock: CloneLock, old: Path, new: Path) -> bool:
    """Connect the worktree that was at the real path `old` and is at `new`; False where that is not needed.

    Whatever is at `new` now, also nothing: its branch and commits are then those of the worktree that is made again
    there. Every step can be repeated. Raises OSError.
    """
    clone, new = lock.clone, real_path(new)
    if old == new:
        return False
    moved = move_private(clone.data_dir.resolve(), old, new)
    before, after = progress_file(clone.data_dir, old), progress_file(clone.data_dir, new)
    if before.exists():
        before.rename(after)
    # As git wrote it: at the old place there may be a link to the new one now.
    wanted = f"{old}/.git"
    found = next((one for one in admin_directories(clone.path) if recorded(one / "gitdir") == wanted), None)
    if found is None:
        return moved
    admin = real_path(found)
    if _names(new, admin.relative_to(clone.data_dir.resolve())):
        # The rename replaces what is there, also a link.
        making = new.with_name(f".{new.name}.{secrets.token_hex(4)}")
        making.write_text(f"gitdir: {admin}\n")
        making.rename(new / ".git")
    write(admin / "gitdir", f"{new}/.git")
    return True


def _names(path: Path, admin: PurePath) -> bool:
    """Return whether the directory is the worktree whose folder was at `admin` in some DATA_DIR.

    No other one gets a link to the clone: its missing files would count as deleted by an agent.
    """
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            return False
    except (FileNotFoundError, NotADirectoryError):
        return False
    return recorded(path / ".git").removeprefix("gitdir:").strip().endswith(f"/{admin}")
