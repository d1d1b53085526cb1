"""The worktrees that git has registered in a clone (`<clone>/worktrees`), and the state of their directories."""

import asyncio
import itertools
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePath

from bot.clones.admin import (
    Missing,
    admin_directory,
    find_admin_directory,
    head_in,
    loose_commit,
    real_path,
    recorded,
    write_head,
)
from bot.clones.clone import Clone, CloneLock
from bot.clones.status import changes_in
from bot.git import refs
from bot.git.errors import GitError, GitProblem
from bot.sandbox.untrusted_files import locks_below, remove_blocking, remove_untrusted
from bot.sandbox.view import private_folder, remove_locks
from bot.sandbox.view import unblock as unblock_view

LIVE = "threadtree: in use"
# Lock reasons. While an operator's `git worktree add` runs, git's own is "initializing".
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
_NO_COMMIT = "0" * 40


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered worktree; its directory may be gone. `head` is None on a branch without a commit."""

    path: Path
    head: str | None
    branch: str | None
    lock_reason: str | None


@dataclass(frozen=True, slots=True)
class Valid:
    """A worktree of this clone. `head` is None on a branch without a commit, `branch` None when HEAD is detached.

    `files` are uncommitted.
    """

    head: str | None
    branch: str | None
    files: int


async def all_entries(clone: Clone) -> list[Entry]:
    """Return all registered worktrees; the time grows with their number. Raises GitError."""
    listed = await clone.run("worktree", "list", "--porcelain", "-z")
    return parse_entries(listed.stdout)


def parse_entries(listed: bytes) -> list[Entry]:
    """Parse the output of `git worktree list --porcelain -z`, without the bare clone."""
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


def is_unfinished(admin: Path) -> bool:
    """Return whether the creation of this worktree was cut off."""
    return recorded(admin / "locked") in UNFINISHED


async def operation_in_progress(clone: Clone, path: Path) -> str | None:
    """Return the unfinished operation of a worktree: rebase, merge, cherry-pick, revert, bisect or None."""
    state = await clone.state_folder(path)
    return _operation_in(state) if state else None


def _operation_in(state: Path) -> str | None:
    return next((name for file, name in _OPERATIONS.items() if os.path.lexists(state / file)), None)


async def clear_stale_locks(clone: Clone, path: Path) -> None:
    """Remove the locks that a killed git left in a worktree's state, or what an agent put in their place.

    Needs its claim, and no running agent. Raises OSError.
    """
    await _unblock_state(clone, path)
    admin, state = admin_directory(clone.path, path), await clone.state_folder(path)
    if state is None or isinstance(admin, Missing):
        return
    for lock in (*state.glob("*.lock"), *(state / "refs" / name for name in locks_below(state / "refs"))):
        remove_untrusted(state, lock.relative_to(state))
    remove_untrusted(admin, PurePath("HEAD.lock"))
    if clone.git.cage is not None:
        remove_locks(await clone.view(path))


async def _unblock_state(clone: Clone, path: Path) -> None:
    admin = admin_directory(clone.path, path)
    if clone.git.cage is None and isinstance(admin, Path):
        await asyncio.to_thread(remove_blocking, admin, "", links=True)
    elif (view := clone.existing_view(path)) is not None:
        await asyncio.to_thread(unblock_view, view)


async def unblock(clone: Clone, path: Path) -> None:
    """Remove pipes where git would open them and wait, in a worktree and its state. Raises OSError.

    It looks at each name in the worktree: once after an agent was at work there is enough.
    """
    await _unblock_state(clone, path)
    await asyncio.to_thread(remove_blocking, path, ".git", links=False)


async def inspect(clone: Clone, path: Path) -> Valid | Missing:
    """Return the state of the finished worktree of this clone at `path`. Raises GitError if that is unknown."""
    admin = admin_directory(clone.path, path)
    if isinstance(admin, Missing):
        return admin
    if is_unfinished(admin):
        return Missing("it was never finished")
    await unblock(clone, path)
    try:
        files = len(await changes_in(clone, path))
        head, branch = await head_of(clone, path), await branch_of(clone, path)
        if clone.git.cage is not None and head is None and await _has_commits(clone, branch):
            return Missing("its HEAD names no commit")
        return Valid(head, branch, files)
    except GitError as error:
        if error.problem in (GitProblem.NOT_FOUND, GitProblem.CORRUPT):
            return Missing(str(error), error.problem is GitProblem.CORRUPT)
        raise


async def _has_commits(clone: Clone, branch: str | None) -> bool:
    """Return whether HEAD must name a commit: only the branch of an empty repository has none."""
    return branch is None or not refs.is_branch(branch) or await clone.commit_at(refs.local(branch)) is not None


async def head_of(clone: Clone, path: Path) -> str | None:
    """Return the commit that is checked out, None on a branch without one. Raises GitError, OSError."""
    named = await named_head(clone, path)
    if named is not None and (known := await clone.commit_at(named)) is not None:
        return known
    found = await clone.on_worktree(path, "rev-parse", "--verify", "--quiet", "HEAD^{commit}", check=False)
    return found.text if found.status == 0 else None


async def named_head(clone: Clone, path: Path) -> str | None:
    """Return the commit that HEAD names, by git's files; None where only git can tell. It may not exist.

    Raises GitError, OSError.
    """
    state = await clone.state_folder(path)
    name = head_in(state) if state is not None else None
    if name is None or refs.is_commit(name):
        return name
    return await clone.commit_at(name) if clone.git.cage is None else loose_commit((await clone.view(path)).refs, name)


async def branch_of(clone: Clone, path: Path) -> str | None:
    """Return the branch that is checked out, None when HEAD is detached. Raises GitError, OSError."""
    state = await clone.state_folder(path)
    name = head_in(state) if state is not None else None
    if name is not None:
        return None if refs.is_commit(name) else name.removeprefix("refs/heads/")
    found = await clone.on_worktree(path, "symbolic-ref", "--quiet", "HEAD", check=False)
    return found.text.removeprefix("refs/heads/") if found.status == 0 else None


async def changed_files(clone: Clone, path: Path) -> list[str]:
    """Return the names of uncommitted and untracked files, as `changes_in`. Raises GitError, OSError."""
    return [change.name for change in await changes_in(clone, path)]


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


def mark_live(admin: Path) -> None:
    """Lock a finished worktree: a plain `git worktree prune` removes any whose directory is away for a moment."""
    (admin / "locked").write_text(f"{LIVE}\n")


def restore_admin_directory(lock: CloneLock, path: Path, branch: str | None) -> bool:
    """Make a lost folder in the clone again, with `branch` (None: detached); return whether that was needed and done.

    HEAD, index and commits are in the cage's private state. Without a cage they went with the folder. Raises OSError.
    """
    clone, cage = lock.clone, lock.clone.git.cage
    if cage is None or find_admin_directory(clone.path, path) is not None:
        return False
    name = _name_in_cage(private_folder(cage.data_dir, real_path(path)) / "worktrees")
    if name is None or (clone.path / "worktrees" / name).exists():
        return False
    _add_folder(clone.path, name, path, refs.local(branch) if branch else _NO_COMMIT, LIVE)
    return True


def register(lock: CloneLock, path: Path, head: str) -> None:
    """Make the free `path` an unfinished worktree without files, whose HEAD is a full ref or a commit. Raises OSError.

    `git worktree add` reads all worktrees first. Where this is cut off, the clone has an unfinished worktree whose
    directory is gone or empty.
    """
    clone, place = lock.clone.path, real_path(path)
    names = (f"{path.name}{number or ''}" for number in itertools.count())
    name = next(name for name in names if not os.path.lexists(clone / "worktrees" / name))
    admin = _add_folder(clone, name, path, head, UNFINISHED[0])
    place.mkdir()
    (place / ".git").write_text(f"gitdir: {admin}\n")


def _add_folder(clone: Path, name: str, path: Path, head: str, locked: str) -> Path:
    """Add a folder for the worktree at `path`, which appears at once; return its real path. Raises OSError."""
    making = clone / f"worktree.{secrets.token_hex(8)}.lock"  # what a killed process leaves goes with git's locks
    making.mkdir()
    try:
        content = {"commondir": "../..", "gitdir": f"{real_path(path)}/.git", "locked": locked}
        for file, text in content.items():
            (making / file).write_text(f"{text}\n")
        write_head(making, head)
        (clone / "worktrees").mkdir(exist_ok=True)
        return making.rename(clone / "worktrees" / name).resolve()
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise


def _name_in_cage(folder: Path) -> str | None:
    """Return the name of the one worktree that the cage shows."""
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return names[0] if len(names) == 1 else None
