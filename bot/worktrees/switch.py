"""A worktree is switched to another branch, only where that loses and overwrites nothing."""

from dataclasses import dataclass
from pathlib import Path

from bot.clones import entries
from bot.clones.admin import other_holder
from bot.clones.checkout import check_out
from bot.clones.clone import Clone, CloneLock
from bot.clones.importing import import_commits, move_branch, private_commits
from bot.failpoints import reached
from bot.git import refs
from bot.git.errors import GitError, GitProblem
from bot.rescue.contents import parse_entries
from bot.rescue.save import stashes_not_rescued
from bot.sharing_rules import Misfit


@dataclass(frozen=True, slots=True)
class Switched:
    """The worktree has the branch checked out; the branch it had before stays where it was."""


@dataclass(frozen=True, slots=True)
class DoesNotFit:
    """The worktree is as it was."""

    why: Misfit


async def switch(lock: CloneLock, path: Path, before: str, after: str) -> Switched | DoesNotFit:
    """Check out `after`, the head branch of a pull request, in the worktree of the branch `before`, after a fetch.

    An interrupted switch is continued. Raises GitError, InvalidNameError, OSError.
    """
    clone = lock.clone
    theirs = await clone.commit_at(refs.remote(after))
    if theirs is None:
        return DoesNotFit("branch-gone")
    await entries.clear_stale_locks(clone, path)
    why = await _why_not_leave(lock, path, before, after, theirs) or await _why_not_enter(clone, path, after, theirs)
    if why is not None:
        return DoesNotFit(why)
    reached("switch-checked")
    if await entries.branch_of(clone, path) != after:
        await move_branch(lock, path, refs.local(after), theirs, await clone.commit_at(refs.local(after)))
        await clone.run("branch", "--quiet", f"--set-upstream-to={refs.remote(after)}", after)
        if not await check_out(clone, path, after, theirs):
            return DoesNotFit("in-the-way")
    await import_commits(lock, path, after)
    reached("switch-checked-out")
    return Switched()


async def _why_not_leave(lock: CloneLock, path: Path, before: str, after: str, theirs: str) -> Misfit | None:
    """Return why the worktree would lose something that the commit `theirs` does not have."""
    clone = lock.clone
    if await entries.operation_in_progress(clone, path):
        return "unfinished"
    if await entries.branch_of(clone, path) not in (before, after):
        return "off-branch"
    try:
        await import_commits(lock, path, before)
    except GitError as error:
        if error.problem is not GitProblem.CORRUPT:
            raise
        return "only-here"
    head = await entries.head_of(clone, path)
    for tip in (head, await clone.commit_at(refs.local(before))):
        if tip is not None and not await clone.is_ancestor(tip, theirs):
            return "not-contained"
    if await _hidden_edits(clone, path):
        return "hidden-edits"
    if await entries.changed_files(clone, path):
        return "uncommitted"
    if await private_commits(lock, path) or await stashes_not_rescued(clone, {before}):
        return "only-here"
    return None


async def _why_not_enter(clone: Clone, path: Path, after: str, theirs: str) -> Misfit | None:
    """Return why the branch `after` cannot be checked out here."""
    ref = refs.local(after)
    known = await clone.commit_at(ref)
    shown = await clone.on_worktree(path, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", check=False)
    own = shown.text if shown.status == 0 else None
    if await entries.branch_of(clone, path) == after and own != known:
        return "off-branch"  # the agent made a branch of that name
    for tip in filter(None, {known, own}):
        if not await clone.is_ancestor(tip, theirs):
            return "branch-diverged"
    return "branch-elsewhere" if other_holder(clone.path, path, after) else None


async def _hidden_edits(clone: Clone, path: Path) -> bool:
    """Return whether git is set to ignore edits of some file."""
    listed = await clone.on_worktree(path, "ls-files", "--stage", "-v", "-z")
    return any(entry.flagged for entry in parse_entries(listed.stdout))
