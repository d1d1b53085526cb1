"""Before a turn a worktree is compared with GitHub, and follows it or is switched where that loses nothing."""

from dataclasses import dataclass
from typing import Literal

import structlog

from bot import refs
from bot.failpoints import reached
from bot.model import IssueBranch
from bot.sharing_rules import Misfit
from bot.tree.clone import branch_history
from bot.tree.clone.admin import holder, recorded_branch
from bot.tree.clone.branch_history import is_merged
from bot.tree.clone.check_out import check_out
from bot.tree.clone.checkout import Checkout
from bot.tree.clone.clone import Clone, CloneLock, DefaultBranch
from bot.tree.clone.fetch import remote_default_branch
from bot.tree.clone.importing import import_commits, move_branch, private_commits
from bot.tree.clone.published import lend
from bot.tree.clone.start import StartPoint, resolve
from bot.tree.git.errors import GitError, GitProblem
from bot.tree.rescue.save import stashes_not_rescued
from bot.tree.rescue.snapshot import flagged_file

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Synced:
    """How a worktree is to the remote's branch, by `ahead` and `behind` commits.

    `fast-forwarded`: clean, by so many as it was behind. `diverged`: clean, but both branches have commits of their
    own, or an ignored file is in the way; `rewritten`: the remote's has lost commits that it had, by a force push, and
    there is work here that was never published. `followed`: there is none, so it is where the remote's branch is.
    `dirty`: left as it is, with uncommitted `files`. `off-branch`: left on another `branch`, None when detached.
    `branch-deleted`: left as it is; its commits are not in the base. `continued`: its branch was merged, so it is on
    `branch` now, which starts at `base_branch`.
    """

    how: Literal[
        "fast-forwarded", "diverged", "rewritten", "followed", "dirty", "off-branch", "branch-deleted", "continued"
    ]
    ahead: int = 0
    behind: int = 0
    files: int = 0
    branch: str | None = None
    base_branch: str | None = None


MOVED = ("fast-forwarded", "followed", "continued")
"""How a worktree is where something else is checked out now."""


@dataclass(frozen=True, slots=True)
class OfIssue:
    """The issue that a worktree belongs to, and the branch its work goes into."""

    issue: IssueBranch
    base_branch: str | None


async def sync(checkout: Checkout, branch: str | None, rescue: str, of: OfIssue | None = None) -> Synced | None:
    """Compare with the remote's branch, after a fetch; fast-forward when clean and behind. None: clean, and at it or
    ahead of it, or there is nothing to compare with: never pushed, detached. Raises GitError.

    A rewritten branch is followed where nothing here was never published; what was here is kept under the ref `rescue`.
    With `of`, a branch that was merged is left for the issue's next, and one without a commit follows the base.
    """
    clone, current = checkout.clone, checkout.branch
    imported = await import_readable_commits(checkout, branch)
    if branch is None:
        return None
    if current != branch:
        return await _continued_before(checkout, branch, current, of) or Synced("off-branch", branch=current)
    files = checkout.files if checkout.files is not None else len(await checkout.work())
    mine, theirs = await clone.commit_at(refs.local(branch)), await clone.commit_at(refs.remote(branch))
    if not imported or mine is None:
        # Its commits are such as no clone should have: this turn's agent may mend them, so it is not held back.
        return Synced("dirty", files=files) if files else None
    if of is not None and not files and (followed := await _follow_base(checkout, branch, of)) is not None:
        return followed
    if theirs is None:
        if await branch_history.last_pushed(clone, branch) is not None:
            return Synced("branch-deleted")
        return Synced("dirty", files=files) if files else None
    ahead, behind = await clone.ahead_behind(mine, theirs)
    if ahead and (taken := await branch_history.taken_off(clone, branch, mine)):
        if files or not await _follow_rewritten(checkout, branch, (mine, theirs), rescue):
            return Synced("rewritten", ahead, behind, files)
        return Synced("followed", len(taken), behind)
    if files:
        return Synced("dirty", behind=behind, files=files)
    if ahead and behind:
        is_rewritten = await branch_history.is_rewritten(clone, branch)
        return Synced("rewritten" if is_rewritten else "diverged", ahead, behind)
    if behind and not await check_out(checkout, branch, theirs):
        return Synced("diverged", 0, behind)
    await branch_history.record_pushed(checkout.lock, branch, theirs)
    return Synced("fast-forwarded", behind=behind) if behind else None


async def _follow_rewritten(checkout: Checkout, branch: str, tips: tuple[str, str], rescue: str) -> bool:
    """Move a clean worktree from its commit to the remote's, and keep the former; False where work would be lost."""
    clone, (mine, theirs) = checkout.clone, tips
    if await branch_history.never_published(clone, branch, mine):
        return False
    await clone.run("update-ref", rescue, mine)
    reached("rewritten-kept")
    if not await check_out(checkout, branch, theirs):
        return False
    await branch_history.record_pushed(checkout.lock, branch, theirs)
    return True


async def sync_detached(checkout: Checkout, onto: str, rescue: str) -> Synced | None:
    """Move a clean detached worktree to the commit `onto`; commits that only its HEAD reached are kept under the ref
    `rescue`. With uncommitted files it is left as it is. Raises GitError, OSError.
    """
    clone, head = checkout.clone, checkout.commit
    await import_readable_commits(checkout, None)
    if head is None or head == onto:
        return None
    files = len(await checkout.work())
    commits = await clone.count(onto, f"^{head}")
    if files:
        return Synced("dirty", behind=commits, files=files)
    if await clone.unpublished(head):
        await clone.run("update-ref", rescue, head)
    is_forwarded = await check_out(checkout, None, onto)
    return Synced("fast-forwarded" if is_forwarded else "diverged", behind=commits)


async def detach(checkout: Checkout, branch: str, onto: str, rescue: str) -> Synced | None:
    """Take a worktree off its branch, which the remote has no more: to `onto`, the last commit that GitHub has of it.

    It stays on its own commit where that goes on from there, or files are uncommitted. Commits that are left are kept
    under the ref `rescue`. Raises GitError, OSError.
    """
    clone, head = checkout.clone, checkout.commit
    await import_readable_commits(checkout, branch)
    files = len(await checkout.work())
    stays = head is not None and (files or await clone.is_ancestor(onto, head))
    if head is not None and not stays and await clone.unpublished(head):
        await clone.run("update-ref", rescue, head)
    target = head if head is not None and stays else onto
    if (checkout.branch is not None or head != target) and not await check_out(checkout, None, target):
        return Synced("diverged", 0, await clone.count(onto, f"^{head}"))
    return Synced("dirty", files=files) if files else None


async def import_readable_commits(checkout: Checkout | None, branch: str | None = None) -> bool:
    """Import the commits of a worktree; return whether that worked. Without `branch` the one on record counts."""
    if checkout is None:
        return True
    try:
        await import_commits(checkout, branch or recorded_branch(checkout.admin))
    except GitError as error:
        _log.warning("commits-not-imported", path=str(checkout.path), problem=str(error))
        return False
    return True


async def _follow_base(checkout: Checkout, branch: str, of: OfIssue) -> Synced | None:
    """Move a clean worktree to the issue's next branch after a merge, or forward if it has no commit; else None."""
    clone = checkout.clone
    mine, theirs = await clone.commit_at(refs.local(branch)), await clone.commit_at(refs.remote(branch))
    was = theirs or await branch_history.last_pushed(clone, branch)
    base = await _base(checkout.lock, of)
    if mine is None or base is None or mine == base.tip:
        return None
    if was is None:
        if not await clone.is_ancestor(mine, base.tip) or not await check_out(checkout, branch, base.tip):
            return None
        return Synced("fast-forwarded", behind=await clone.count(base.tip, f"^{mine}"))
    return await _continue(checkout, of) if await _is_finished(clone, branch, base) else None


async def _is_finished(clone: Clone, branch: str, base: DefaultBranch) -> bool:
    """Return whether all commits of the branch were pushed and are in the base now."""
    mine, theirs = await clone.commit_at(refs.local(branch)), await clone.commit_at(refs.remote(branch))
    was = theirs or await branch_history.last_pushed(clone, branch)
    known = await clone.commit_at(was) if was else None
    if mine is None or known is None or not await clone.is_ancestor(mine, known):
        return False  # there is work that was not pushed
    if theirs:
        return await clone.is_ancestor(known, base.tip)
    # A squash is looked for only where the branch is gone: many commits must be read for that.
    return await is_merged(clone, known, base.tip, None)


async def _continued_before(checkout: Checkout, branch: str, current: str | None, of: OfIssue | None) -> Synced | None:
    """Finish a move to the issue's next branch that was cut off before its row was written, or return None."""
    clone = checkout.clone
    was, now = (refs.sequel_of(name, of.issue) if of and name else None for name in (branch, current))
    if of is None or current is None or was is None or now is None or now <= was:
        return None
    base = await _base(checkout.lock, of)
    if base is None or not await _is_finished(clone, branch, base):
        return None
    await import_commits(checkout, current)
    await branch_history.record_pushed(checkout.lock, current, await clone.commit_at(refs.remote(current)))
    return Synced("continued", branch=current, base_branch=base.name)


async def _base(lock: CloneLock, of: OfIssue) -> DefaultBranch | None:
    """Return the base branch as the remote has it; where that is gone, the default branch."""
    known = await lock.clone.commit_at(refs.remote(of.base_branch)) if of.base_branch else None
    if of.base_branch is not None and known is not None:
        return DefaultBranch(of.base_branch, known)
    default = await remote_default_branch(lock)
    return default if isinstance(default, DefaultBranch) else None


async def _continue(checkout: Checkout, of: OfIssue) -> Synced | None:
    """Check out the issue's next branch; the merged one stays. None where that is not possible."""
    clone = checkout.clone
    start = await resolve(checkout.lock, of.issue)
    if not isinstance(start, StartPoint) or start.branch is None:
        return None
    # A branch that is here already only moves forward, as `resolve` promises.
    if holder(clone.path, start.branch, checkout.path) is not None:
        return None
    await lend(clone, checkout.view, start.commit)
    if not await check_out(checkout, start.branch, start.commit):
        return None
    reached("next-branch-checked-out")
    await branch_history.record_pushed(checkout.lock, start.branch, await clone.commit_at(refs.remote(start.branch)))
    return Synced("continued", branch=start.branch, base_branch=start.base_branch)


# Another branch, where that loses and overwrites nothing


async def switch(checkout: Checkout, before: str, after: str) -> Misfit | None:
    """Check out `after`, the head branch of a pull request, in the worktree of the branch `before`, after a fetch.

    Return why that was not done; then the worktree is as it was. The branch that it had before stays where it was. An
    interrupted switch is continued. Raises GitError, InvalidNameError, OSError.
    """
    clone = checkout.clone
    theirs = await clone.commit_at(refs.remote(after))
    why = await obstacle(checkout, before, after)
    if theirs is None or why is not None:
        return why
    reached("switch-checked")
    if checkout.branch != after:
        await move_branch(checkout, refs.local(after), theirs, await clone.commit_at(refs.local(after)))
        await clone.run("branch", "--quiet", f"--set-upstream-to={refs.remote(after)}", after)
        if not await check_out(checkout, after, theirs):
            return "in-the-way"
    else:
        await import_commits(checkout, after)
    reached("switch-checked-out")
    return None


async def obstacle(checkout: Checkout, before: str, after: str) -> Misfit | None:
    """Return why the worktree cannot be switched, or None; that another one has the branch comes last."""
    theirs = await checkout.clone.commit_at(refs.remote(after))
    if theirs is None:
        return "branch-gone"
    return await _why_not_leave(checkout, before, after, theirs) or await _why_not_enter(checkout, after, theirs)


async def _why_not_leave(checkout: Checkout, before: str, after: str, theirs: str) -> Misfit | None:
    """Return why the worktree would lose something that the commit `theirs` does not have."""
    clone = checkout.clone
    if checkout.operation_in_progress():
        return "unfinished"
    if checkout.branch not in (before, after):
        return "off-branch"
    try:
        await import_commits(checkout, before)
    except GitError as error:
        if error.problem is not GitProblem.CORRUPT:
            raise
        return "only-here"
    for tip in (checkout.commit, await clone.commit_at(refs.local(before))):
        if tip is not None and not await clone.is_ancestor(tip, theirs):
            return "not-contained"
    if await flagged_file(checkout) is not None:
        return "hidden-edits"
    if await checkout.work():
        return "uncommitted"
    if await private_commits(checkout) or await stashes_not_rescued(clone, {before}):
        return "only-here"
    return None


async def _why_not_enter(checkout: Checkout, after: str, theirs: str) -> Misfit | None:
    """Return why the branch `after` cannot be checked out here."""
    clone, ref = checkout.clone, refs.local(after)
    known, own = await clone.commit_at(ref), await checkout.commit_at(ref)
    if checkout.branch == after and own != known:
        return "off-branch"  # the agent made a branch of that name
    for tip in filter(None, {known, own}):
        if not await clone.is_ancestor(tip, theirs):
            return "branch-diverged"
    return "branch-elsewhere" if holder(clone.path, after, checkout.path) else None
