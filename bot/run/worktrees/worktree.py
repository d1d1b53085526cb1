"""The worktree of a conversation: made, made again at the same path, and brought up to date before a turn."""

from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import structlog

from bot.run.worktrees import entries, refs
from bot.run.worktrees.clone import Clone, CloneLock, move_to_trash
from bot.run.worktrees.entries import Entry, Valid, inspect
from bot.run.worktrees.git import GitError
from bot.run.worktrees.importing import bring_home, forget_private
from bot.run.worktrees.linked import branch_on_record, real
from bot.run.worktrees.start import (
    Checkout,
    DetachedHead,
    HeadBranch,
    IssueBranch,
    Refused,
    RefusedReason,
    Start,
    resolve,
)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Created:
    """A finished, locked worktree at `tip`. `base_branch` is known for an issue's branch only."""

    branch: str | None
    base_branch: str | None
    tip: str


@dataclass(frozen=True, slots=True)
class UpToDate:
    """Clean, and at the remote's branch."""


@dataclass(frozen=True, slots=True)
class FastForwarded:
    """Clean, and brought forward by `commits`."""

    before: str
    after: str
    commits: int


@dataclass(frozen=True, slots=True)
class Ahead:
    """Clean, with commits that were not pushed."""

    commits: int


@dataclass(frozen=True, slots=True)
class Diverged:
    """Clean, but the branch and the remote's each have commits of their own; left as it is."""

    ahead: int
    behind: int


@dataclass(frozen=True, slots=True)
class Dirty:
    """Uncommitted files; left as it is."""

    files: int
    ahead: int
    behind: int


@dataclass(frozen=True, slots=True)
class OffBranch:
    """HEAD is not on the worktree's branch (`current` is None when detached); left as it is."""

    current: str | None


@dataclass(frozen=True, slots=True)
class NoRemoteBranch:
    """There is nothing to compare with: never pushed, deleted on the remote, or detached."""


Synced = UpToDate | FastForwarded | Ahead | Diverged | Dirty | OffBranch | NoRemoteBranch


async def create(lock: CloneLock, path: Path, start: Start, rescue: str) -> Created | Refused:
    """Makes the worktree, after a fetch. A finished one of the same start is returned as it is; anything else at `path`
    goes to the trash, and commits that only it reached to the ref `rescue`. Raises GitError, InvalidNameError, OSError.
    """
    state = await inspect(lock.clone, path)
    if isinstance(state, Valid):
        return await _found(lock, path, state, start)
    await _bring_what_can_be_read(lock, path)
    checkout = await resolve(lock, start)
    if isinstance(checkout, Refused):
        return checkout
    return await _make(lock, path, checkout, rescue)


async def recreate(lock: CloneLock, path: Path, branch: str | None, tip: str | None, rescue: str) -> Created | Refused:
    """Makes a lost worktree again at the same path: from its branch with its commits, else the remote's, else where
    its HEAD was, else `tip`. `branch` is None for a detached one. Raises GitError, InvalidNameError, OSError.
    """
    clone = lock.clone
    state = await inspect(clone, path)
    if isinstance(state, Valid):
        return Created(branch, None, state.head or "")
    await _bring_what_can_be_read(lock, path, branch)
    entry = await entries.entry_of(clone, path)
    candidates = (refs.local(branch), refs.remote(branch)) if branch else ()
    for revision in (*candidates, entry.head if entry else None, tip):
        commit = await clone.commit_at(revision) if revision else None
        if commit is not None:
            known = await clone.commit_at(refs.local(branch)) if branch else None
            return await _make(lock, path, Checkout(branch, None, commit, known), rescue)
    return Refused(RefusedReason.COMMITS_GONE, "Neither its branch nor its commits exist any more. Start a new one.")


async def sync(lock: CloneLock, path: Path, branch: str | None) -> Synced:
    """Compares with the remote's branch, after a fetch; fast-forwards when clean and behind. Raises GitError."""
    clone = lock.clone
    await entries.clear_stale_locks(clone, path)
    brought = await _bring_what_can_be_read(lock, path, branch)
    if branch is None:
        return NoRemoteBranch()
    current = await entries.branch_of(clone, path)
    if current != branch:
        return OffBranch(current)
    files = len(await entries.changed_files(clone, path))
    if not brought:
        # Its commits are such as no clone should have: this turn's agent may mend them, so it is not held back.
        return Dirty(files, 0, 0) if files else NoRemoteBranch()
    mine, theirs = await clone.commit_at(refs.local(branch)), await clone.commit_at(refs.remote(branch))
    if mine is None or theirs is None:
        return Dirty(files, 0, 0) if files else NoRemoteBranch()
    ahead, behind = await clone.count(mine, f"^{theirs}"), await clone.count(theirs, f"^{mine}")
    if files:
        return Dirty(files, ahead, behind)
    if ahead and behind:
        return Diverged(ahead, behind)
    if ahead:
        return Ahead(ahead)
    if not behind:
        return UpToDate()
    await clone.on_worktree(path, "merge", "--quiet", "--ff-only", theirs)
    await bring_home(lock, path, branch)
    return FastForwarded(mine, theirs, behind)


async def follow_head(lock: CloneLock, path: Path, onto: str, rescue: str) -> Synced:
    """Moves a clean detached worktree to the commit `onto`; commits that only its HEAD reached are kept under the ref
    `rescue`. With uncommitted files it is left as it is. Raises GitError, OSError.
    """
    clone = lock.clone
    await entries.clear_stale_locks(clone, path)
    await _bring_what_can_be_read(lock, path, None)
    head = await entries.head_of(clone, path)
    if head is None or head == onto:
        return UpToDate()
    files = len(await entries.changed_files(clone, path))
    commits = await clone.count(onto, f"^{head}")
    if files:
        return Dirty(files, 0, commits)
    if await clone.unpublished(head):
        await clone.run("update-ref", rescue, head)
    await clone.on_worktree(path, "checkout", "--quiet", "--detach", onto)
    await _bring_what_can_be_read(lock, path, None)
    return FastForwarded(head, onto, commits)


async def _found(lock: CloneLock, path: Path, state: Valid, start: Start) -> Created | Refused:
    """An earlier call finished, but its caller did not live to hear of it."""
    base: str | None = None
    match start:
        case IssueBranch(number):
            fits = state.branch is not None and refs.sequel_of(state.branch, number) is not None
            checkout = await resolve(lock, start)
            base = checkout.base_branch if isinstance(checkout, Checkout) else None
        case HeadBranch(branch):
            fits = state.branch == branch
        case DetachedHead(sha, _):
            fits = state.branch is None and state.head == sha
        case _:
            assert_never(start)
    if fits and state.head:
        return Created(state.branch, base, state.head)
    return Refused(RefusedReason.PATH_IN_USE, f"`{path.name}` is already the worktree of something else.")


async def _make(lock: CloneLock, path: Path, checkout: Checkout, rescue: str) -> Created | Refused:
    clone = lock.clone
    holder = await _holder(clone, path, checkout.branch)
    if holder is not None:
        advice = f"`{checkout.branch}` is checked out in `{holder.path.name}`. Remove that worktree, then ask again."
        return Refused(RefusedReason.BRANCH_IN_USE, advice)
    await _clear(lock, path, rescue)
    path.parent.mkdir(parents=True, exist_ok=True)
    if checkout.branch and checkout.moves_from and checkout.moves_from != checkout.commit:
        await clone.run("update-ref", refs.local(checkout.branch), checkout.commit, checkout.moves_from)
    try:
        await _check_out(clone, path, checkout)
    except GitError:
        await _clear(lock, path, rescue)
        raise
    return Created(checkout.branch, checkout.base_branch, checkout.commit)


async def _check_out(clone: Clone, path: Path, checkout: Checkout) -> None:
    """Registers and locks first, then fills the directory: what is cut off in between is known as unfinished."""
    branch = checkout.branch
    if branch is None:
        what = ["--detach", "--", str(path), checkout.commit]
    elif checkout.moves_from is not None:
        what = ["--", str(path), branch]
    else:
        upstream = await clone.commit_at(refs.remote(branch)) == checkout.commit
        start = refs.remote(branch) if upstream else checkout.commit
        what = ["--track" if upstream else "--no-track", "-b", branch, "--", str(path), start]
    await clone.run("worktree", "add", "--quiet", "--no-checkout", "--lock", "--reason", entries.UNFINISHED[0], *what)
    await clone.on_worktree(path, "reset", "--quiet", "--hard")
    if (await entries.head_of(clone, path), await entries.branch_of(clone, path)) != (checkout.commit, checkout.branch):
        raise RuntimeError(f"git checked out something else than {checkout}")
    await clone.run("worktree", "unlock", "--", str(path))
    await clone.run("worktree", "lock", "--reason", entries.LIVE, "--", str(path))


async def _holder(clone: Clone, path: Path, branch: str | None) -> Entry | None:
    """The other worktree that has this branch checked out: git allows one."""
    others = (entry for entry in await entries.all_entries(clone) if entry.path != real(path))
    return next((entry for entry in others if branch is not None and entry.branch == branch), None)


async def _clear(lock: CloneLock, path: Path, rescue: str) -> None:
    """Makes the path free: whatever is there is kept in the trash, never deleted."""
    await _bring_what_can_be_read(lock, path)
    move_to_trash(lock.clone, path)
    await entries.drop_entry(lock, path, rescue)
    forget_private(lock.clone, path)


async def _bring_what_can_be_read(lock: CloneLock, path: Path, branch: str | None = None) -> bool:
    """Whether all commits of a worktree are in the clone now; `branch` is the one on record unless it is known."""
    view = lock.clone.view_on_record(path)
    if view is None:
        return True
    try:
        await bring_home(lock, path, branch or branch_on_record(view.admin))
    except GitError as error:
        _log.warning("commits-not-imported", path=str(path), problem=str(error))
        return False
    return True
