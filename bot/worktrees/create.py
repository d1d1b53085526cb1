"""A worktree is created, or created again at the same path."""

import asyncio
import os
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import assert_never

import structlog

from bot.clones import branch_history, entries
from bot.clones.admin import (
    Missing,
    admin_directory,
    find_admin_directory,
    last_reflog_commit,
    other_holder,
    real_path,
)
from bot.clones.clone import Clone, CloneLock
from bot.clones.entries import Valid, inspect
from bot.clones.start import Checkout, Refused, RefusedReason, resolve, start_branch
from bot.failpoints import reached
from bot.git import refs
from bot.git.errors import GitError, GitProblem
from bot.messages import reasons
from bot.model import DetachedHead, HeadBranch, IssueBranch, Start
from bot.sandbox.untrusted_files import entries_below
from bot.sandbox.view import private_folder
from bot.worktrees.spares import CHECKOUT_TIMEOUT_SECONDS, is_pristine, take_spare
from bot.worktrees.sync import import_readable_commits
from bot.worktrees.unlink import unlink_worktree

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Created:
    """A finished, locked worktree at `tip`. `base_branch` is known for an issue's branch only.

    `kept`: the name in DATA_DIR/kept of what was in its place.
    """

    branch: str | None
    base_branch: str | None
    tip: str
    kept: str | None = None


@dataclass(frozen=True, slots=True)
class Examined:
    """The state of a worktree's path. `mended`: git's entry was missing and was restored."""

    state: Valid | Missing
    mended: bool = False


async def create(lock: CloneLock, path: Path, start: Start, rescue: str) -> Created | Refused:
    """Create the worktree, after a fetch. A finished one of the same start is returned as it is; all else at `path`
    is kept, and commits that only it reached under the ref `rescue`. Raises GitError, InvalidNameError, OSError.
    """
    state = await inspect(lock.clone, path)
    if isinstance(state, Valid) and (made := await _found(lock, state, start)) is not None:
        return made
    await import_readable_commits(lock, path)
    checkout = await resolve(lock, start)
    if isinstance(checkout, Refused):
        return checkout
    return await _make(lock, path, checkout, rescue)


async def examine(lock: CloneLock, path: Path, branch: str | None, seen: Valid | None = None) -> Examined:
    """Return what is at the path of a worktree that was made on `branch`. `seen`: what was found a moment ago.

    Raises GitError, OSError.
    """
    state = seen or await inspect(lock.clone, path)
    mended = isinstance(state, Missing) and entries.restore_admin_directory(lock, path, branch)
    if mended:
        await import_readable_commits(lock, path, branch)
        state = await inspect(lock.clone, path)
    if isinstance(state, Valid) and state.head is None and state.branch == branch:
        return Examined(Missing("its branch has no commit any more"))
    if isinstance(state, Valid) and isinstance(admin := admin_directory(lock.clone.path, path), Path):
        entries.mark_live(admin)
    return Examined(state, mended and isinstance(state, Valid))


async def recreate(
    lock: CloneLock, path: Path, branch: str | None, tip: str | None, rescue: str, start: Start | None = None
) -> Created | Refused:
    """Create a lost worktree again at the same path: from its branch with its commits, else the remote's, else where
    its HEAD was, else `tip`, else from `start`. `branch` is None for a detached one. Raises GitError, InvalidNameError,
    OSError.
    """
    clone = lock.clone
    state = (await examine(lock, path, branch)).state
    if isinstance(state, Valid):
        return Created(branch, None, state.head or "")
    await import_readable_commits(lock, path, branch)
    candidates = (refs.local(branch), refs.remote(branch)) if branch else ()
    for revision in (*candidates, await _head_on_record(clone, path), tip):
        commit = await clone.commit_at(revision) if revision else None
        if commit is not None:
            known = await clone.commit_at(refs.local(branch)) if branch else None
            return await _make(lock, path, Checkout(branch, None, commit, known), rescue)
    if start is None:
        return Refused(RefusedReason.COMMITS_GONE, reasons.COMMITS_GONE)
    checkout = await resolve(lock, start)
    return checkout if isinstance(checkout, Refused) else await _make(lock, path, checkout, rescue)


async def _head_on_record(clone: Clone, path: Path) -> str | None:
    """Return the commit of the worktree's HEAD, or the last one in its log where its branch is gone."""
    if head := await entries.registered_head(clone, path):
        return head
    admin = find_admin_directory(clone.path, path)
    return last_reflog_commit(admin / "logs" / "HEAD") if admin else None


async def _found(lock: CloneLock, state: Valid, start: Start) -> Created | None:
    """Return the finished worktree of an earlier call that was cut off; None where that had another start."""
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
    return Created(state.branch, base, state.head) if fits and state.head else None


async def _make(lock: CloneLock, path: Path, checkout: Checkout, rescue: str) -> Created | Refused:
    clone = lock.clone
    holder = other_holder(clone.path, path, checkout.branch) if checkout.branch else None
    if holder is not None and checkout.branch is not None:
        advice = reasons.branch_checked_out(checkout.branch, holder.name)
        return Refused(RefusedReason.BRANCH_IN_USE, advice)
    kept = await _clear(lock, path, rescue)
    path.parent.mkdir(parents=True, exist_ok=True)
    if checkout.branch and checkout.moves_from and checkout.moves_from != checkout.commit:
        await clone.run("update-ref", refs.local(checkout.branch), checkout.commit, checkout.moves_from)
    try:
        await _check_out(lock, path, checkout)
    except (GitError, OSError):
        await _clear(lock, path, rescue)
        raise
    if checkout.branch is not None:
        await _note_published(lock, checkout.branch, checkout)
    return Created(checkout.branch, checkout.base_branch, checkout.commit, kept)


async def _note_published(lock: CloneLock, branch: str, checkout: Checkout) -> None:
    theirs = await lock.clone.commit_at(refs.remote(branch))
    if theirs is not None and await lock.clone.is_ancestor(theirs, checkout.commit):
        await branch_history.record_pushed(lock, branch, theirs)
    elif checkout.moves_from is None:
        await branch_history.record_pushed(lock, branch, None)


async def _check_out(lock: CloneLock, path: Path, checkout: Checkout) -> None:
    """Register and lock the worktree first, then write its files: what is cut off in between is known as unfinished."""
    clone = lock.clone
    spare = await take_spare(lock, path, checkout)
    if spare is None:
        entries.register(lock, path, await start_branch(lock, checkout))
    reached("worktree-registered")
    if spare != checkout.commit:
        await clone.on_worktree(path, "reset", "--quiet", "--hard", timeout_seconds=CHECKOUT_TIMEOUT_SECONDS)
    if spare is not None and not await is_pristine(clone, path):
        _log.warning("spare-not-used", path=str(path))
        await asyncio.to_thread(unlink_worktree, lock, path, datetime.now(UTC), whole=False)
        entries.register(lock, path, refs.local(checkout.branch) if checkout.branch else checkout.commit)
        await clone.on_worktree(path, "reset", "--quiet", "--hard", timeout_seconds=CHECKOUT_TIMEOUT_SECONDS)
    reached("worktree-checked-out")
    if (await entries.head_of(clone, path), await entries.branch_of(clone, path)) != (checkout.commit, checkout.branch):
        raise RuntimeError(f"git checked out something else than {checkout}")
    admin = admin_directory(clone.path, path)
    if isinstance(admin, Missing):
        raise GitError(GitProblem.OTHER, "worktree", f"the new worktree went away: {admin.why}")
    entries.mark_live(admin)
    reached("worktree-locked")


async def _clear(lock: CloneLock, path: Path, rescue: str) -> str | None:
    """Free the path; return the name under which its directory is kept, None where it held nothing."""
    if await asyncio.to_thread(_is_free, lock.clone, path):
        return None
    imported = await import_readable_commits(lock, path)
    await entries.keep_head(lock, path, rescue)
    whole = not imported or await asyncio.to_thread(_holds_something, lock.clone, path)
    gone = await asyncio.to_thread(unlink_worktree, lock, path, refs.rescue_time(rescue), whole=whole)
    return gone.kept.name if gone.kept else None


def _is_free(clone: Clone, path: Path) -> bool:
    """Return whether there is nothing at the path, and nothing of a worktree there in the clone and in its cage."""
    cage = clone.git.cage
    places = (path, private_folder(cage.data_dir, real_path(path))) if cage is not None else (path,)
    return not any(map(os.path.lexists, places)) and find_admin_directory(clone.path, path) is None


def _holds_something(clone: Clone, path: Path) -> bool:
    """Return whether there are files that may exist only here."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        return stat.S_ISREG(mode) and path.stat().st_size > 0
    admin = admin_directory(clone.path, path)
    if not isinstance(admin, Missing) and entries.is_unfinished(admin):
        return False
    own = str(path / ".git")
    return any(child.path != own and not child.is_dir(follow_symlinks=False) for child in entries_below(path))
