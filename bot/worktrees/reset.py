"""A worktree is reset: what it holds is rescued, then it is made equal to its base on GitHub."""

import itertools
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from bot.clones import trash
from bot.clones.admin import Missing, is_unfinished
from bot.clones.checkout import Checkout, Head, open_checkout
from bot.clones.clone import CloneLock, NoDefaultBranch
from bot.clones.fetch import fetch_ref, remote_default_branch
from bot.clones.importing import import_commits, move_branch
from bot.clones.start import Refused, issue_branch
from bot.failpoints import reached
from bot.git import refs
from bot.git.errors import GitError, GitProblem
from bot.messages import reasons
from bot.model import DetachedHead, HeadBranch, IssueBranch, Start
from bot.rescue.contents import flagged_file
from bot.rescue.message import RescueLabel
from bot.rescue.save import KeepDirectory, Rescued
from bot.sandbox.view import forget_own_refs, own_refs
from bot.worktrees.create import recreate
from bot.worktrees.unlink import is_checked_out_elsewhere, rescue_first, rescued_commit, unlink_worktree

# What git's folder of a worktree at rest holds. The index goes too: a file with skip-worktree survives `reset --hard`.
_AT_REST = frozenset({"HEAD", "commondir", "gitdir", "locked", "logs", "modules", "refs"})
# Deep folders take git very long to delete: to make the directory again is quicker.
CLEAN_SECONDS = 30.0
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WasReset:
    """Clean at `after`, the tip of its base, on `branch` (None: detached), before at `before` if that could be read.

    `base_branch` is known for an issue's branch. What was there is in `rescue`, or in the directory `kept`, or it held
    nothing. `submodules`: what git said of those that could not be brought up to date. `trashed`: bytes to be deleted.
    """

    branch: str | None
    base_branch: str | None
    before: str | None
    after: str
    rescue: Rescued | None
    kept: Path | None
    submodules: str | None = None
    trashed: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class ResetRefused:
    """There is no commit to start from, or its branch is checked out elsewhere; `why` ends with the next step."""

    why: str


@dataclass(frozen=True, slots=True)
class _Base:
    """The target of a reset: `commit` on `branch`; for an issue on that branch or the next free one."""

    branch: str | None
    commit: str
    base_branch: str | None = None
    issue: int | None = None


class _NotInPlaceError(Exception):
    """The directory cannot be made clean: a new one must take its place."""

    def __init__(self, why: str, submodules: str | None = None) -> None:
        super().__init__(why)
        self.submodules = submodules


async def reset(
    lock: CloneLock, path: Path, start: Start, label: RescueLabel, merged_head: str | None = None
) -> WasReset | ResetRefused:
    """Reset the worktree of the branch in `label`, after a fetch. An issue's branch only moves forward: if it has
    commits of its own, or was merged (`merged_head`: the last merged commit, by GitHub), the issue's next branch is
    checked out.

    After it was cut off it can be repeated with the same label. Raises GitError, OSError, InvalidNameError.
    """
    clone = lock.clone
    base = await _base(lock, start, label.branch)
    if isinstance(base, ResetRefused):
        return base
    before = await _head(lock, path)
    found = await rescue_first(lock, path, label)
    reached("reset-rescued")
    branch = await _branch(lock, path, base, merged_head)
    if branch is not None and is_checked_out_elsewhere(clone.path, path, branch):
        return ResetRefused(reasons.branch_checked_out(branch))
    kept = trash.kept_folder(clone.data_dir) / trash.kept_name(path, label.at)
    trashed: tuple[Path, ...] = ()
    try:
        if isinstance(found, KeepDirectory):
            raise _NotInPlaceError(found.why)
        submodules = await _in_place(lock, path, branch, base.commit)
    except _NotInPlaceError as problem:
        _log.info("worktree-created-again", path=str(path), why=str(problem))
        submodules = problem.submodules
        trashed = unlink_worktree(lock, path, label.at, whole=isinstance(found, KeepDirectory)).trashed
        refused = await _anew(lock, path, branch, base.commit, label)
        if refused is not None:
            return ResetRefused(refused.next_step)
    reached("reset-done")
    return WasReset(
        branch,
        base.base_branch,
        before,
        base.commit,
        rescued_commit(found),
        kept if os.path.lexists(kept) else None,  # noqa: ASYNC240
        submodules,
        trashed,
    )


async def _base(lock: CloneLock, start: Start, branch: str | None) -> _Base | ResetRefused:
    clone = lock.clone
    match start:
        case DetachedHead(sha, ref_to_fetch) if branch is None:
            try:
                return _Base(None, await fetch_ref(lock, ref_to_fetch))
            except GitError as error:
                if error.problem is not GitProblem.NOT_FOUND or await clone.commit_at(sha) is None:
                    raise
                return _Base(None, sha)
        case IssueBranch(number) if branch is None or refs.sequel_of(branch, number) is not None:
            default = await remote_default_branch(lock)
            if isinstance(default, NoDefaultBranch):
                return ResetRefused(default.next_step)
            tip = await clone.commit_at(refs.remote(default.name)) or default.tip
            return _Base(branch or await issue_branch(clone, number, 1), tip, default.name, number)
        case IssueBranch() | HeadBranch() | DetachedHead():
            name = branch or (start.branch if isinstance(start, HeadBranch) else "")
            theirs = await clone.commit_at(refs.remote(name))
            if theirs is None:
                return ResetRefused(reasons.branch_gone(name))
            return _Base(name, theirs)


async def _branch(lock: CloneLock, path: Path, base: _Base, merged_head: str | None) -> str | None:
    """Return the branch to check out. A pull request's local branch moves to GitHub's commit, after the
    rescue of what was committed on it.
    """
    clone = lock.clone
    if base.branch is None or base.issue is None:
        return base.branch
    first = refs.sequel_of(base.branch, base.issue) or 1
    if merged_head is None and await _is_free(lock, base.branch, base.commit, published=True):
        return base.branch
    for sequel in itertools.count(first + 1):
        branch = await issue_branch(clone, base.issue, sequel)
        free = await _is_free(lock, branch, base.commit, published=False)
        if free and not is_checked_out_elsewhere(clone.path, path, branch):
            return branch
    raise AssertionError("there is always a next one")


async def _is_free(lock: CloneLock, branch: str, commit: str, *, published: bool) -> bool:
    """Return whether the branch can move to `commit` and lose no commit; no if GitHub has it, unless `published`.

    A local branch without commits of its own can be left from an attempt that was cut off.
    """
    clone = lock.clone
    theirs = await clone.commit_at(refs.remote(branch))
    if theirs is not None and not published:
        return False
    tips = (theirs, await clone.commit_at(refs.local(branch)))
    return all([tip is None or await clone.is_ancestor(tip, commit) for tip in tips])


async def _in_place(lock: CloneLock, path: Path, branch: str | None, commit: str) -> str | None:
    """Make the directory equal to `commit`; return git's words on submodules. Raises _NotInPlaceError, OSError."""
    try:
        checkout = await open_checkout(lock, path)
        if isinstance(checkout, Missing) or is_unfinished(checkout.admin):
            raise _NotInPlaceError("it is no finished worktree of this clone")
        _forget_what_goes_on(lock.clone.data_dir, checkout.state)
        await checkout.git("update-ref", "--no-deref", "HEAD", commit)
        _forget_branches(checkout)
        if branch is not None:
            ref = refs.local(branch)
            await move_branch(checkout, ref, commit, await lock.clone.commit_at(ref))
            await checkout.git("symbolic-ref", "HEAD", ref)
        await checkout.git("reset", "--quiet", "--hard")
        reached("reset-checked-out")
        submodules = await _submodules(checkout, commit)
        await checkout.git("clean", "--quiet", "-ffdx", timeout_seconds=CLEAN_SECONDS)
        left = await _what_is_left(checkout, Head(commit, branch))
        if left is not None:
            raise _NotInPlaceError(left, submodules)
        await import_commits(checkout, branch)
    except GitError as error:
        raise _NotInPlaceError(str(error)) from error
    return submodules


def _forget_what_goes_on(data_dir: Path, state: Path) -> None:
    """Drop the index and every operation in progress."""
    for entry in list(state.iterdir()):
        if entry.name not in _AT_REST:
            trash.move_to_trash(data_dir, entry)


def _forget_branches(checkout: Checkout) -> None:
    """Drop the branches and stashes that an agent made in its cage: what they reach was rescued."""
    if checkout.isolated:
        for place in own_refs(checkout.view):
            trash.move_to_trash(checkout.clone.data_dir, place)
        forget_own_refs(checkout.view)


async def _submodules(checkout: Checkout, commit: str) -> str | None:
    """Update submodules that are checked out to the commits in `commit`; return git's words where that fails."""
    if (await checkout.clone.run("cat-file", "-e", f"{commit}:.gitmodules", check=False)).status:
        return None
    updated = await checkout.git("submodule", "--quiet", "update", "--force", "--checkout", "--recursive", check=False)
    if updated.status:
        return updated.stderr.strip() or f"exit status {updated.status}"
    for clean in (("reset", "--quiet", "--hard"), ("clean", "--quiet", "-ffdx")):
        await checkout.git("submodule", "--quiet", "foreach", "--recursive", "git", *clean)
    return None


async def _what_is_left(checkout: Checkout, wanted: Head) -> str | None:
    """Return why the worktree does not equal what is wanted, ignored and hidden files included; None where it does."""
    if await checkout.read_head() != wanted:
        return "its HEAD is not where it was put"
    flags = ("--porcelain=v1", "-z", "--untracked-files=all", "--ignored=matching", "--ignore-submodules=none")
    left = (await checkout.git("status", *flags)).fields
    if left or await flagged_file(checkout) is not None:
        return f"it is not clean: {left[:3]}"
    return None


async def _anew(lock: CloneLock, path: Path, branch: str | None, commit: str, label: RescueLabel) -> Refused | None:
    clone = lock.clone
    if branch is not None:
        tip = await clone.commit_at(refs.local(branch))
        if tip != commit:
            await clone.run("update-ref", refs.local(branch), commit, tip or "0" * len(commit))
    made = await recreate(lock, path, branch, commit, refs.rescue_ref(str(label.worktree_id), label.at))
    return made if isinstance(made, Refused) else None


async def _head(lock: CloneLock, path: Path) -> str | None:
    with suppress(GitError, OSError):
        checkout = await open_checkout(lock, path)
        return checkout.head.commit if isinstance(checkout, Checkout) else None
    return None
