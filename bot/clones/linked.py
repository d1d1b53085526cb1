"""A worktree's directory and its folder in the clone: how each names the other."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from bot.git import refs


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no usable worktree of this clone at the path. `corrupt`: git met damage, here or in the clone."""

    why: str
    corrupt: bool = False


def real(path: Path) -> Path:
    """`path` as git writes it down: its parents without symbolic links, itself as it is."""
    return path.parent.resolve() / path.name


def admin_directory(clone: Path, path: Path) -> Path | Missing:
    """The folder in the clone that belongs to the worktree at `path`, both pointing at each other."""
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            return Missing("it is not a directory")
        if not stat.S_ISREG((path / ".git").lstat().st_mode):
            return Missing("its .git is not a file")
        admin = Path((path / ".git").read_text().removeprefix("gitdir:").strip())
        if admin.parent.resolve() != (clone / "worktrees").resolve():
            return Missing("it belongs to another repository")
        if Path((admin / "gitdir").read_text().strip()) != real(path) / ".git":
            return Missing("git knows it under another path")
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError) as error:
        return Missing("the directory is gone" if not path.exists() else f"its link to the clone is broken: {error}")
    return admin


def branch_on_record(admin: Path) -> str | None:
    """The branch that a worktree's folder in the clone says is checked out; None when it says a commit."""
    prefix, head = "ref: refs/heads/", (admin / "HEAD").read_text().strip()
    branch = head.removeprefix(prefix)
    return branch if head.startswith(prefix) and refs.is_branch(branch) else None


def last_logged(log: Path) -> str:
    """The object name that a ref went to last, by its log; empty where that tells none.

    https://git-scm.com/docs/git-update-ref#_logging_updates
    """
    try:
        lines = log.read_bytes().splitlines()
    except OSError:
        return ""
    words = next(reversed(lines), b"").split(b" ", 2)
    return os.fsdecode(words[1]) if len(words) > 1 else ""


def admin_on_record(clone: Path, path: Path) -> Path | None:
    """The clone's folder for the worktree at `path`, also when nothing is there any more. Grows with their number."""
    wanted = str(real(path) / ".git")
    for pointer in (clone / "worktrees").glob("*/gitdir"):
        if pointer.read_text().strip() == wanted:
            return pointer.parent
    return None
