"""What git has on record of worktrees, whether or not their directories are there."""

import os
from dataclasses import dataclass
from pathlib import Path

from bot.clones.admin import LIVE, add_record, find_admin_directory, real_path, recorded
from bot.clones.clone import Clone, CloneLock
from bot.git import refs

_NO_COMMIT = "0" * 40


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered worktree; its directory may be gone. `head` is None on a branch without a commit."""

    path: Path
    head: str | None
    branch: str | None
    lock_reason: str | None


async def all_entries(clone: Clone) -> list[Entry]:
    """Return all registered worktrees; the time grows with their number. Raises GitError."""
    listed = (await clone.run("worktree", "list", "--porcelain", "-z")).stdout
    found: list[Entry] = []
    for record in os.fsdecode(listed).split("\0\0"):
        lines = dict(line.partition(" ")[::2] for line in record.split("\0") if line)
        if not lines or "bare" in lines:
            continue
        head = lines.get("HEAD")
        branch = lines["branch"].removeprefix("refs/heads/") if "branch" in lines else None
        commit = head if head and head.strip("0") else None
        found.append(Entry(Path(lines["worktree"]), commit, branch, lines.get("locked")))
    return found


async def registered_head(clone: Clone, path: Path) -> str | None:
    """Return the commit of a worktree by its folder in the clone, also if its directory is gone. Raises GitError."""
    admin = find_admin_directory(clone.path, path)
    if admin is None:
        return None
    head = recorded(admin / "HEAD")
    revision = head.removeprefix("ref: ")
    return await clone.commit_at(revision) if refs.is_commit(head) or refs.is_ref(revision) else None


async def keep_head(lock: CloneLock, path: Path, ref: str) -> None:
    """Keep commits that only the registered HEAD of the worktree at `path` reaches, under `ref`. Raises GitError."""
    head = await registered_head(lock.clone, path)
    if head and await lock.clone.count("--max-count=1", "--single-worktree", head, "--not", *refs.ALL_BUT_HELD):
        await lock.clone.run("update-ref", ref, head)


def restore_admin_directory(lock: CloneLock, path: Path, branch: str | None) -> bool:
    """Make a lost folder in the clone again, with `branch` (None: detached); return whether that was needed and done.

    HEAD, index and commits are in the cage's private state. Without a cage they went with the folder. Raises OSError.
    """
    clone, cage = lock.clone, lock.clone.git.cage
    if not cage.isolates or find_admin_directory(clone.path, path) is not None:
        return False
    shown = cage.private_folder(real_path(path)) / "worktrees"
    names = [entry.name for entry in shown.iterdir()] if shown.is_dir() else []
    if len(names) != 1 or (clone.path / "worktrees" / names[0]).exists():
        return False
    add_record(clone.path, names[0], path, refs.local(branch) if branch else _NO_COMMIT, LIVE)
    return True
