"""Connect a worktree with its clone again after DATA_DIR was moved: both name the other by its absolute path."""

import os
import secrets
from pathlib import Path, PurePath

from bot.clones.admin import admin_directories, real_path, recorded
from bot.clones.clone import CloneLock
from bot.rescue.restore import progress_file
from bot.sandbox.untrusted_files import write_untrusted
from bot.sandbox.view import View, private_folder


def relocate(lock: CloneLock, old: Path, new: Path) -> bool:
    """Connect the worktree that was at the real path `old` and is at `new`; False where that is not needed.

    Every step can be repeated. Raises OSError.
    """
    clone, new = lock.clone, real_path(new)
    wanted = f"{old}/.git"
    admin = next((one for one in admin_directories(clone.path) if recorded(one / "gitdir") == wanted), None)
    if admin is None or old == new or not os.path.lexists(new):
        return False
    admin = real_path(admin)
    _move_private(clone.data_dir.resolve(), View(clone.path, old, admin, private_folder(clone.data_dir, old)), new)
    before, after = progress_file(clone.data_dir, old), progress_file(clone.data_dir, new)
    if before.exists():
        before.rename(after)
    # The rename replaces what is there, also a link.
    _replace(new.with_name(f".{new.name}.{secrets.token_hex(4)}"), new / ".git", f"gitdir: {admin}\n")
    _replace(admin / f"gitdir.{secrets.token_hex(4)}", admin / "gitdir", f"{new}/.git\n")
    return True


def _move_private(data_dir: Path, before: View, new: Path) -> None:
    """Move the private state of a sandboxed worktree to the name that its new path gives it."""
    after = View(before.clone, new, before.admin, private_folder(data_dir, new))
    if not before.private.is_dir() or after.private.exists():
        return
    write_untrusted(before.common, PurePath("objects", "info", "alternates"), f"{after.clone_objects}\n")
    before.private.rename(after.private)


def _replace(written: Path, path: Path, text: str) -> None:
    written.write_text(text)
    written.rename(path)
