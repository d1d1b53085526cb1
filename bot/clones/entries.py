"""git's own record of a clone's worktrees (`<clone>/worktrees`), and what a directory says about itself."""

import os
from dataclasses import dataclass
from pathlib import Path

from bot.clones.clone import Clone, CloneLock
from bot.clones.linked import Missing as Missing
from bot.clones.linked import admin_directory, real
from bot.git import refs
from bot.git.runner import GitError, GitProblem
from bot.sandbox.view import remove_locks

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


async def all_entries(clone: Clone) -> list[Entry]:
    """All worktrees git has on record, without the bare clone itself. Grows with their number. Raises GitError."""
    listed = await clone.run("worktree", "list", "--porcelain", "-z")
    return parse_entries(listed.stdout)


def parse_entries(listed: bytes) -> list[Entry]:
    """The output of `git worktree list --porcelain -z`, without the bare clone."""
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


async def entry_of(clone: Clone, path: Path) -> Entry | None:
    """The entry that belongs to this path. Raises GitError."""
    return next((entry for entry in await all_entries(clone) if entry.path == real(path)), None)


def is_unfinished(admin: Path) -> bool:
    """Whether making this worktree was cut off."""
    locked = admin / "locked"
    return locked.is_file() and locked.read_text().strip() in UNFINISHED


async def operation_in_progress(clone: Clone, path: Path) -> str | None:
    """The git operation that was begun in a worktree and not ended: rebase, merge, cherry-pick, revert or bisect."""
    state = await clone.state_folder(path)
    return next((name for file, name in _OPERATIONS.items() if state and _exists(state / file)), None)


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


async def clear_stale_locks(clone: Clone, path: Path) -> None:
    """Removes the locks a killed git left in a worktree's state. Only with its claim held and no agent running."""
    state = await clone.state_folder(path)
    if state is None:
        return
    for name in ("index.lock", "HEAD.lock"):
        (state / name).unlink(missing_ok=True)
    if clone.git.cage is not None:
        remove_locks(await clone.view(path))


async def inspect(clone: Clone, path: Path) -> Valid | Missing:
    """Whether `path` is a finished worktree of this clone, and its state. Raises GitError when that cannot be told."""
    admin = admin_directory(clone.path, path)
    if isinstance(admin, Missing):
        return admin
    if is_unfinished(admin):
        return Missing("it was never finished")
    try:
        shown = await clone.on_worktree(
            path, "rev-parse", "--path-format=absolute", "--git-common-dir", "--show-toplevel"
        )
        common, top = shown.text.split("\n", 1)
        if real(Path(common)) != real(clone.path) or Path(top) != real(path):
            return Missing("it belongs to another repository")
        head, branch = await head_of(clone, path), await branch_of(clone, path)
        if clone.git.cage is not None and head is None and await _has_commits(clone, branch):
            return Missing("its HEAD names no commit")
        return Valid(head, branch, bool(await changed_files(clone, path)))
    except GitError as error:
        if error.problem in (GitProblem.NOT_FOUND, GitProblem.CORRUPT):
            return Missing(str(error), error.problem is GitProblem.CORRUPT)
        raise


async def _has_commits(clone: Clone, branch: str | None) -> bool:
    """Whether a worktree cannot be on a branch without a commit, as that of an empty repository is."""
    return branch is None or not refs.is_branch(branch) or await clone.commit_at(refs.local(branch)) is not None


async def head_of(clone: Clone, path: Path) -> str | None:
    """The commit checked out, None on a branch without one. Raises GitError."""
    found = await clone.on_worktree(path, "rev-parse", "--verify", "--quiet", "HEAD^{commit}", check=False)
    return found.text if found.status == 0 else None


async def branch_of(clone: Clone, path: Path) -> str | None:
    """The branch checked out, None when HEAD is detached. Raises GitError."""
    found = await clone.on_worktree(path, "symbolic-ref", "--quiet", "HEAD", check=False)
    return found.text.removeprefix("refs/heads/") if found.status == 0 else None


async def changed_files(clone: Clone, path: Path) -> list[tuple[str, str]]:
    """What is not committed, as (two-letter state, name): untracked files too, ignored ones not. Raises GitError.

    The name of a nested repository ends in `/`.
    """
    flags = ("--porcelain=v1", "-z", "--untracked-files=all", "--ignore-submodules=none", "--no-renames")
    return [(line[:2], line[3:]) for line in (await clone.on_worktree(path, "status", *flags)).fields]


async def hold_head(lock: CloneLock, path: Path, ref: str) -> None:
    """Keeps under `ref` what only the HEAD of the worktree at `path` reaches, by git's record. Raises GitError."""
    clone = lock.clone
    entry = await entry_of(clone, path)
    if entry is None or entry.head is None or await clone.commit_at(entry.head) is None:
        return
    if await clone.count("--max-count=1", "--single-worktree", entry.head, "--not", "--all"):
        await clone.run("update-ref", ref, entry.head)


def mark_live(admin: Path) -> None:
    """Locks a finished worktree: a plain `git worktree prune` removes others whose directory is briefly away."""
    (admin / "locked").write_text(f"{LIVE}\n")
