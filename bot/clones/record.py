"""git's folder for a worktree is gone from the clone: put back from what the cage keeps of the worktree."""

import secrets
import shutil
from pathlib import Path

from bot.clones.clone import CloneLock
from bot.clones.entries import LIVE
from bot.clones.linked import admin_on_record, real
from bot.git import refs
from bot.sandbox.view import private_folder

_NO_COMMIT = "0" * 40


def restore_admin_entry(lock: CloneLock, path: Path, branch: str | None) -> bool:
    """Whether the folder was gone and is there again, with `branch` (None: detached). Raises OSError.

    HEAD, index and commits are in the cage's private state; without a cage they were in the folder and went with it.
    """
    clone, cage = lock.clone, lock.clone.git.cage
    if cage is None or admin_on_record(clone.path, path) is not None:
        return False
    name = _name(private_folder(cage.data_dir, real(path)) / "worktrees")
    if name is None or (clone.path / "worktrees" / name).exists():
        return False
    making = clone.path / f"worktree.{secrets.token_hex(8)}"
    making.mkdir()
    try:
        head = f"ref: {refs.local(branch)}" if branch else _NO_COMMIT
        content = {"HEAD": head, "commondir": "../..", "gitdir": f"{real(path)}/.git", "locked": LIVE}
        for file, text in content.items():
            (making / file).write_text(f"{text}\n")
        (clone.path / "worktrees").mkdir(exist_ok=True)
        making.rename(clone.path / "worktrees" / name)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    return True


def _name(folder: Path) -> str | None:
    """The one worktree that the cage shows."""
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return names[0] if len(names) == 1 else None
