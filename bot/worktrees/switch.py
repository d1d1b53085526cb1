"""A worktree is switched to another branch, only where that loses and overwrites nothing."""

from bot.clones.admin import holder
from bot.clones.check_out import check_out
from bot.clones.checkout import Checkout
from bot.clones.importing import import_commits, move_branch, private_commits
from bot.failpoints import reached
from bot.git import refs
from bot.git.errors import GitError, GitProblem
from bot.rescue.save import stashes_not_rescued
from bot.rescue.snapshot import flagged_file
from bot.sharing_rules import Misfit


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
    if checkout.head.branch != after:
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
    if checkout.head.branch not in (before, after):
        return "off-branch"
    try:
        await import_commits(checkout, before)
    except GitError as error:
        if error.problem is not GitProblem.CORRUPT:
            raise
        return "only-here"
    for tip in (checkout.head.commit, await clone.commit_at(refs.local(before))):
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
    if checkout.head.branch == after and own != known:
        return "off-branch"  # the agent made a branch of that name
    for tip in filter(None, {known, own}):
        if not await clone.is_ancestor(tip, theirs):
            return "branch-diverged"
    return "branch-elsewhere" if holder(clone.path, after, checkout.path) else None
