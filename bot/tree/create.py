"""A worktree is created, or created again at the same path."""

import asyncio
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

from bot import refs
from bot.failpoints import reached
from bot.files import real_path
from bot.model import DetachedHead, HeadBranch, IssueBranch, Start
from bot.sandbox.untrusted_files import entries_below
from bot.thread import reasons
from bot.tree.clone import admin as records
from bot.tree.clone import branch_history
from bot.tree.clone.admin import Missing
from bot.tree.clone.check_out import put_back
from bot.tree.clone.checkout import (
    DAMAGE,
    Checkout,
    examine,
    on_record,
    open_checkout,
    registered,
    restore_admin_directory,
)
from bot.tree.clone.clone import CheckoutRefused, Clone, CloneLock
from bot.tree.clone.on_host import move_branch, show
from bot.tree.clone.shared_blocks import mark_own_blocks
from bot.tree.clone.start import StartPoint, resolve, start_branch
from bot.tree.git.errors import GitError, GitProblem
from bot.tree.lfs.objects import write_again
from bot.tree.remove import unlink_worktree
from bot.tree.sync import import_readable_commits

_CHECKOUT_TIMEOUT_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Created:
    """A finished, locked worktree at `tip`. `base_branch` is known for an issue's branch only.

    `kept`: the name in DATA_DIR/kept of what was in its place.
    """

    branch: str | None
    base_branch: str | None
    tip: str
    kept: str | None = None


async def create(lock: CloneLock, path: Path, start: Start, rescue: str) -> Created | CheckoutRefused:
    """Create the worktree, after a fetch. A finished one of the same start is returned as it is; all else at `path`
    is kept, and commits that only it reached under the ref `rescue`. Raises GitError, InvalidNameError.
    """
    checkout = await open_checkout(lock, path)
    state = await examine(checkout) if isinstance(checkout, Checkout) else checkout
    if isinstance(state, Checkout) and (made := await _found(lock, state, start)) is not None:
        return made
    await import_readable_commits(await on_record(lock, path))
    point = await resolve(lock, start)
    return point if isinstance(point, CheckoutRefused) else await _make(lock, path, point, rescue)


async def reopen(lock: CloneLock, path: Path, branch: str | None) -> Checkout | Missing:
    """Return the finished worktree at `path` that was made on `branch`, with its lock. Raises GitError, OSError."""
    checkout, restored = await open_checkout(lock, path), False
    if isinstance(checkout, Missing) and (restored := restore_admin_directory(lock, path, branch)):
        checkout = await open_checkout(lock, path)
        await import_readable_commits(await on_record(lock, path), branch)
    if isinstance(checkout, Missing):
        return checkout
    try:
        await put_back(checkout)
        await write_again(checkout)
    except GitError as error:
        if error.problem not in DAMAGE:  # which `examine` finds too
            raise
    state = await examine(checkout)
    if isinstance(state, Missing):
        return state
    if state.commit is None and state.branch == branch:
        return Missing("its branch has no commit any more")
    records.mark_live(state.admin)
    return replace(state, restored=restored)


async def recreate(
    lock: CloneLock, path: Path, branch: str | None, tip: str | None, rescue: str, start: Start | None = None
) -> Created | CheckoutRefused:
    """Create a lost worktree again at the same path: from its branch with its commits, else the remote's, else where
    its HEAD was, else `tip`, else from `start`. `branch` is None for a detached one. Raises GitError, InvalidNameError,
    OSError.
    """
    clone = lock.clone
    found = await reopen(lock, path, branch)
    if isinstance(found, Checkout):
        return Created(branch, None, found.commit or "")
    await import_readable_commits(await on_record(lock, path), branch)
    candidates = (refs.local(branch), refs.remote(branch)) if branch else ()
    for revision in (*candidates, await _head_on_record(lock, path), tip):
        commit = await clone.commit_at(revision) if revision else None
        if commit is not None:
            known = await clone.commit_at(refs.local(branch)) if branch else None
            return await _make(lock, path, StartPoint(branch, None, commit, known), rescue)
    if start is None:
        return CheckoutRefused(reasons.COMMITS_GONE)
    point = await resolve(lock, start)
    return point if isinstance(point, CheckoutRefused) else await _make(lock, path, point, rescue)


async def _head_on_record(lock: CloneLock, path: Path) -> str | None:
    """Return the commit of the worktree's HEAD, or the last one in its log where its branch is gone."""
    if (known := await on_record(lock, path)) is None:
        return None
    logged = records.recorded(known.admin / "logs" / "HEAD").splitlines()
    return known.commit or (logged[-1].split(" ")[1] if logged else None)


async def _found(lock: CloneLock, state: Checkout, start: Start) -> Created | None:
    """Return the finished worktree of an earlier call that was cut off; None where that had another start."""
    base: str | None = None
    match start:
        case IssueBranch():
            fits = state.branch is not None and refs.sequel_of(state.branch, start) is not None
            point = await resolve(lock, start)
            base = point.base_branch if isinstance(point, StartPoint) else None
        case HeadBranch(branch):
            fits = state.branch == branch
        case DetachedHead(sha, _):
            fits = state.branch is None and state.commit == sha
        case _:
            assert_never(start)
    return Created(state.branch, base, state.commit) if fits and state.commit else None


async def _make(lock: CloneLock, path: Path, point: StartPoint, rescue: str) -> Created | CheckoutRefused:
    clone, branch = lock.clone, point.branch
    if branch is not None and (other := records.holder(clone.path, branch, path)) is not None:
        name = Path(records.recorded(other / "gitdir")).parent.name
        return CheckoutRefused(reasons.branch_checked_out(branch, name), "branch-in-use")
    kept = await _clear(lock, path, rescue)
    path.parent.mkdir(parents=True, exist_ok=True)
    if branch and point.moves_from and point.moves_from != point.commit:
        await move_branch(lock, path, refs.local(branch), point.commit, point.moves_from)
    try:
        await _check_out(lock, path, point)
    except (GitError, OSError):
        await _clear(lock, path, rescue)
        raise
    if branch is not None:
        theirs = await clone.commit_at(refs.remote(branch))
        holds_theirs = theirs is not None and await clone.is_ancestor(theirs, point.commit)
        is_new = point.moves_from is None
        if is_new or (holds_theirs and not await branch_history.taken_off(clone, branch, point.commit)):
            await branch_history.record_pushed(lock, branch, theirs if holds_theirs else None)
    return Created(branch, point.base_branch, point.commit, kept)


async def _check_out(lock: CloneLock, path: Path, point: StartPoint) -> None:
    """Register and lock the worktree first, then write its files: what is cut off in between is known as unfinished.

    The files are written without the clone's lock, where it lets go: others register and push meanwhile.
    """
    records.register(lock.clone.path, path, await start_branch(lock, point))
    reached("worktree-registered")
    checkout = await registered(lock, path)
    async with lock.released():
        await checkout.git("reset", "--quiet", "--hard", timeout_seconds=_CHECKOUT_TIMEOUT_SECONDS)
        reached("worktree-checked-out")
    if records.admin_directory(lock.clone.path, path) != checkout.admin:
        raise GitError(GitProblem.LOCKED, "worktree", "its clone was replaced meanwhile")
    made = await checkout.now()
    if (made.commit, made.branch) != (point.commit, point.branch):
        raise RuntimeError(f"git checked out something else than {point}")
    if checkout.isolated:  # no agent was there yet
        head = refs.local(point.branch) if point.branch else point.commit
        await show(lock, path, checkout.admin, head, point.commit, checkout.state / "index")
    mark_own_blocks(checkout.admin)
    records.mark_live(checkout.admin)
    reached("worktree-locked")


async def _clear(lock: CloneLock, path: Path, rescue: str) -> str | None:
    """Free the path; return the name under which its directory is kept, None where it held nothing."""
    if await asyncio.to_thread(_is_free, lock.clone, path):
        return None
    known = await on_record(lock, path)
    imported = await import_readable_commits(known)
    head = known.commit if known is not None else None
    if head and await lock.clone.count("--max-count=1", "--single-worktree", head, "--not", "--all"):
        await lock.clone.run("update-ref", rescue, head)
    whole = not imported or await asyncio.to_thread(_holds_something, lock.clone, path)
    gone = await asyncio.to_thread(unlink_worktree, lock, path, refs.rescue_time(rescue), whole=whole)
    return gone.kept.name if gone.kept else None


def _is_free(clone: Clone, path: Path) -> bool:
    """Return whether there is nothing at the path, and nothing of a worktree there in the clone and in its sandbox."""
    places = (path, clone.git.sandbox.private_folder(real_path(path)))
    return not any(map(os.path.lexists, places)) and records.find_admin_directory(clone.path, path) is None


def _holds_something(clone: Clone, path: Path) -> bool:
    """Return whether there are files that may exist only here."""
    if path.is_symlink() or not path.is_dir():
        return path.is_file() and not path.is_symlink() and path.stat().st_size > 0
    admin = records.admin_directory(clone.path, path)
    if isinstance(admin, Path) and records.is_unfinished(admin):
        return False
    own = str(path / ".git")
    return any(child.path != own and not child.is_dir(follow_symlinks=False) for child in entries_below(path))
