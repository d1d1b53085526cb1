"""git's own record of a clone's worktrees (`<clone>/worktrees`), and what a directory says about itself."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from bot.run.clone import Clone, CloneLock
from bot.run.git import GitError, GitProblem

LIVE = "threadtree: in use"
# git itself marks an entry that its own `worktree add` has not finished as "initializing".
UNFINISHED = ("threadtree: being made", "initializing")
_OPERATIONS = {
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "BISECT_LOG": "bisect",
    "sequencer": "cherry-pick",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A worktree on git's record, whether or not its directory exists. `head` is None on a branch without a commit."""

    path: Path
    head: str | None
    branch: str | None
    lock_reason: str | None


@dataclass(frozen=True, slots=True)
class Valid:
    """A worktree of this clone. `head` is None on a branch without a commit, `branch` None when HEAD is detached."""

    head: str | None
    branch: str | None
    dirty: bool


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no usable worktree of this clone at the path."""

    why: str


def real(path: Path) -> Path:
    """`path` as git writes it down: its parents without symbolic links, itself as it is."""
    return path.parent.resolve() / path.name


async def all_entries(clone: Clone) -> list[Entry]:
    """All worktrees git has on record, without the bare clone itself. Grows with their number. Raises GitError."""
    listed = await clone.run("worktree", "list", "--porcelain", "-z")
    found: list[Entry] = []
    for record in os.fsdecode(listed.stdout).split("\0\0"):
        lines = dict(line.partition(" ")[::2] for line in record.split("\0") if line)
        if not lines or "bare" in lines:
            continue
        head = lines.get("HEAD")
        branch = lines["branch"].removeprefix("refs/heads/") if "branch" in lines else None
        commit = head if head and head.strip("0") else None
        found.append(Entry(Path(lines["worktree"]), commit, branch, lines.get("locked")))
    return found


async def entry_of(clone: Clone, path: Path) -> Entry | None:
    """The entry that belongs to this path. Raises GitError."""
    return next((entry for entry in await all_entries(clone) if entry.path == real(path)), None)


def admin_directory(clone: Clone, path: Path) -> Path | Missing:
    """The folder in the clone that belongs to the worktree at `path`, both pointing at each other."""
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            return Missing("it is not a directory")
        if not stat.S_ISREG((path / ".git").lstat().st_mode):
            return Missing("its .git is not a file")
        admin = Path((path / ".git").read_text().removeprefix("gitdir:").strip())
        if admin.parent.resolve() != (clone.path / "worktrees").resolve():
            return Missing("it belongs to another repository")
        if Path((admin / "gitdir").read_text().strip()) != real(path) / ".git":
            return Missing("git knows it under another path")
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError) as error:
        return Missing("the directory is gone" if not path.exists() else f"its link to the clone is broken: {error}")
    return admin


def is_unfinished(admin: Path) -> bool:
    """Whether making this worktree was cut off."""
    locked = admin / "locked"
    return locked.is_file() and locked.read_text().strip() in UNFINISHED


def operation_in_progress(admin: Path) -> str | None:
    """The git operation that was begun in a worktree and not ended: rebase, merge, cherry-pick, revert or bisect."""
    return next((name for file, name in _OPERATIONS.items() if os.path.lexists(admin / file)), None)


def clear_stale_locks(clone: Clone, path: Path) -> None:
    """Removes the locks a killed git left in a worktree's entry. Only with its claim held and no agent running."""
    admin = admin_directory(clone, path)
    if isinstance(admin, Path):
        for name in ("index.lock", "HEAD.lock"):
            (admin / name).unlink(missing_ok=True)


async def inspect(clone: Clone, path: Path) -> Valid | Missing:
    """Whether `path` is a finished worktree of this clone, and its state. Raises GitError when that cannot be told."""
    admin = admin_directory(clone, path)
    if isinstance(admin, Missing):
        return admin
    if is_unfinished(admin):
        return Missing("it was never finished")
    try:
        shown = await clone.git.on_worktree(
            path, "rev-parse", "--path-format=absolute", "--git-common-dir", "--show-toplevel"
        )
        common, top = shown.text.split("\n", 1)
        if real(Path(common)) != real(clone.path) or Path(top) != real(path):
            return Missing("it belongs to another repository")
        head = await head_of(clone, path)
        return Valid(head, await branch_of(clone, path), bool(await changed_files(clone, path)))
    except GitError as error:
        if error.problem in (GitProblem.NOT_FOUND, GitProblem.CORRUPT):
            return Missing(str(error))
        raise


async def head_of(clone: Clone, path: Path) -> str | None:
    """The commit checked out, None on a branch without one. Raises GitError."""
    found = await clone.git.on_worktree(path, "rev-parse", "--verify", "--quiet", "HEAD^{commit}", check=False)
    return found.text if found.status == 0 else None


async def branch_of(clone: Clone, path: Path) -> str | None:
    """The branch checked out, None when HEAD is detached. Raises GitError."""
    found = await clone.git.on_worktree(path, "symbolic-ref", "--quiet", "HEAD", check=False)
    return found.text.removeprefix("refs/heads/") if found.status == 0 else None


async def changed_files(clone: Clone, path: Path) -> list[tuple[str, str]]:
    """What is not committed, as (two-letter state, name): untracked files too, ignored ones not. Raises GitError.

    The name of a nested repository ends in `/`.
    """
    flags = ("--porcelain=v1", "-z", "--untracked-files=all", "--ignore-submodules=none", "--no-renames")
    return [(line[:2], line[3:]) for line in (await clone.git.on_worktree(path, "status", *flags)).fields]


async def drop_entry(lock: CloneLock, path: Path, rescue: str) -> None:
    """Forgets the worktree whose directory is gone from `path`; what only its HEAD reached is kept as the ref `rescue`.

    Raises GitError.
    """
    clone = lock.clone
    entry = await entry_of(clone, path)
    if entry is None:
        return
    if entry.head and await clone.count("--max-count=1", "--single-worktree", entry.head, "--not", "--all"):
        await clone.run("update-ref", rescue, entry.head)
    if entry.lock_reason is not None:
        await clone.run("worktree", "unlock", "--", str(entry.path))
    await clone.run("worktree", "remove", "--force", "--", str(entry.path))
    if await entry_of(clone, path) is not None:
        raise GitError(GitProblem.OTHER, "worktree", "the worktree's entry is still there")
