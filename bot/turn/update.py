"""`/update`: the base is merged into the branch; an agent is asked only where that conflicts (DESIGN.md §5)."""

from dataclasses import replace

from bot.failpoints import reached
from bot.store import turns
from bot.thread import update
from bot.thread.tracking import TurnResult
from bot.tree.clone.check_out import check_out
from bot.tree.clone.checkout import require_checkout
from bot.tree.clone.clone import clone_lock
from bot.tree.clone.fetch import fetch
from bot.tree.clone.importing import import_commits
from bot.tree.commit import has_conflict_marks
from bot.tree.git import refs
from bot.tree.push import commit_tree, merged_tree
from bot.turn.checkout import Ready
from bot.turn.turn_run import TurnRun


async def merge_base(run: TurnRun, ready: Ready) -> str | TurnResult | None:
    """Merge the base of the turn's branch; return the answer, saved, or why nothing can be merged.

    None where the agent is to do it, of which the turn's request then tells. Raises StoppedError, ClaimLostError,
    GitError, OSError.
    """
    ctx, turn, branch = run.ctx, run.turn, ready.branch
    base = await base_of(run, ready)
    if branch is None or base is None or base == branch or not refs.is_branch(base):
        return TurnResult("refused", update.NO_BASE)
    async with clone_lock(ctx.clone(turn.worktree.folder), run.stop) as lock:
        await fetch(lock, refspecs=(refs.refspec(base),))
        clone, checkout = lock.clone, await require_checkout(lock, ctx.directory(turn.worktree.path))
        theirs, head = await clone.commit_at(refs.remote(base)), checkout.head.commit
        if theirs is None or head is None:
            return TurnResult("refused", update.NO_BASE)
        await import_commits(checkout, branch)
        if await clone.is_ancestor(theirs, head):
            if turn.began_with is not None:  # its agent was cut off after it had merged
                run.turn = replace(turn, request=update.request(f"origin/{base}", False))
                return None
            new = await clone.count(theirs, f"^{run.head_before}")
            return await _answered(run, update.merged(base, new) if new else update.nothing_new(base))
        tree = await merged_tree(clone, head, theirs)
        if not isinstance(tree, str) or checkout.head.branch != branch or await checkout.work():
            conflicts = () if isinstance(tree, str) else tree
            names = update.conflict_names(conflicts)  # foreign: they stand beside the request
            run.turn = replace(turn, request=update.request(f"origin/{base}", bool(conflicts)), context=names)
            return None
        made = await commit_tree(checkout, tree, (head, theirs), update.commit_message(base, branch), ctx.author)
        if not await check_out(checkout, branch, made):
            return TurnResult("failed", update.IGNORED_FILE_IN_THE_WAY)
        reached("base-merged")
        return await _answered(run, update.merged(base, await clone.count(theirs, f"^{head}")))


async def not_merged(run: TurnRun, ready: Ready) -> tuple[str, ...]:
    """Return what is to be said of an agent that should have merged the base. Raises GitError, GitHubError."""
    ctx, turn, base = run.ctx, run.turn, await base_of(run, ready)
    async with clone_lock(ctx.clone(turn.worktree.folder), run.stop) as lock:
        clone, checkout = lock.clone, await require_checkout(lock, ctx.directory(turn.worktree.path))
        theirs = await clone.commit_at(refs.remote(base)) if base else None
        if base is None or theirs is None or checkout.head.commit is None:
            return ()
        await import_commits(checkout, ready.branch)
        if lacks := await clone.count(theirs, f"^{checkout.head.commit}"):
            return (update.not_merged(base, lacks),)
        tried = await merged_tree(clone, run.head_before, theirs)
        names = () if isinstance(tried, str) else tried
        left = [name for name in names if has_conflict_marks(checkout.path, name)]
        return (update.marks_left(left),) if left else ()


async def base_of(run: TurnRun, ready: Ready) -> str | None:
    """Return the base of the branch: that of its open pull request, if there is one. Raises GitHubError."""
    turn, repository = run.turn, run.turn.worktree.repository
    if ready.branch is not None:
        pulls = [one for one in await run.ctx.github.pulls_of(repository, ready.branch) if one.is_open]
        if pulls:
            return next((one.base for one in pulls if one.number == turn.number), pulls[0].base)
    return ready.base_branch or repository.default_branch


async def _answered(run: TurnRun, answer: str) -> str:
    await run.write(turns.save_answer, run.turn.claim, answer, tuple(run.notices), ())
    run.answer = answer
    return answer
