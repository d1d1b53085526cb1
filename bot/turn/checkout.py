"""Before a turn: fetch the clone, then make, check, repair or update the worktree."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import assert_never

import structlog

from bot import refs
from bot.github.answers import Pull
from bot.model import DetachedHead, HeadBranch, IssueBranch, Start
from bot.node import rescue_rows as rescues
from bot.node.room import require_room
from bot.prompt import remarks
from bot.prompt.foreign import Told
from bot.store import worktrees
from bot.store.turns import ClaimedTurn
from bot.thread import notices, reasons
from bot.tree import CheckoutRefused, Created, GitError, Missing, OpenTree, RescueLabel, Synced
from bot.turn.assign_worktree import closed_issues
from bot.turn.context import TurnContext
from bot.turn.kind import Ready, Seen
from bot.turn.switching import join_worktree_on_branch, share_by_now, switch_if_needed
from bot.turn.turn_run import TurnRun
from bot.turn.waiting import NotThereYetError

_log = structlog.get_logger()
Words = tuple[tuple[Told, ...], tuple[str, ...]]
"""Remarks for the agent, and notices for the thread."""


@dataclass(frozen=True, slots=True)
class NotReady:
    """No worktree can be made: the turn is refused, never run in another checkout (DESIGN.md §3.4)."""

    reason: str


def _address(ctx: TurnContext, turn: ClaimedTurn) -> str:
    return f"{ctx.server_url}/{turn.worktree.repository.full_name}.git"


async def prepare(
    ctx: TurnContext, turn: ClaimedTurn, confirmed: Awaitable[object], on_progress: Callable[[str], None]
) -> Ready | NotReady:
    """Make, recover or update the turn's worktree; `on_progress` gets short lines on the progress of a fetch. No more
    than the fetch is done until the request is `confirmed`, which raises if it is not.

    Raises TurnMovedError if the turn now waits in another worktree; GitError, InvalidNameError, OSError.
    """
    closes = await _closes_by_now(ctx, turn)
    async with ctx.tree(turn.worktree).open() as tree:
        needed, newest = _needed(turn), _needs_no_history(turn)
        updated = await tree.update(_address(ctx, turn), on_progress, needed, newest=newest and bool(needed))
        await confirmed
        if updated.no_access:
            return NotReady(reasons.cannot_fetch(turn.worktree.repository.full_name))
        tree.lets_go = True
        await _know_default_branch(tree, turn)
        replaced = updated.replaced
        try:
            shares = await share_by_now(ctx, tree, turn, closes) if closes is not None else ()
            ready = await _prepare(ctx, tree, turn, on_progress)
        except GitError as error:
            shares, replaced = (), await tree.replace_after(error, on_progress)
            ready = await _prepare(ctx, tree, turn, on_progress)
        if isinstance(ready, NotReady):
            return ready
        ready = await _with_base(tree, ready)
        if turn.so_far.answer is None and ready.head:
            ready = await _with_submodules(ctx, tree, turn, await _with_content(tree, ready))
        if tree.clone.is_shallow:
            ready = replace(ready, remarks=(*ready.remarks, remarks.history_arriving()))
        shares = (*shares, *notices.commits_kept(tree.kept))
    words = (notices.clone_replaced(replaced),) if replaced is not None else ()
    return replace(ready, notices=(*words, *shares, *ready.notices))


async def _with_base(tree: OpenTree, ready: Ready) -> Ready:
    """Take the default branch for the base where that is no longer on GitHub: it was renamed, or merged and deleted."""
    if ready.base_branch is None or await tree.clone.tip(ready.base_branch) is not None:
        return ready
    default = await tree.default_branch()
    return ready if isinstance(default, CheckoutRefused) else replace(ready, base_branch=default.name)


async def _with_content(tree: OpenTree, ready: Ready) -> Ready:
    """Give files under Git LFS their content; tell of those that stay pointers, and of other filters."""
    left = await tree.fill(ready.head)
    told = (
        *([remarks.filtered(left.others)] if left.others else []),
        *([remarks.lfs(left.lines, (*left.beyond, *left.refused))] if left.lines else []),
    )
    said = (
        *([notices.lfs_beyond(left.beyond)] if left.beyond else []),
        *([notices.lfs_refused(left.refused, left.why)] if left.refused else []),
    )
    return replace(ready, remarks=(*ready.remarks, *told), notices=(*ready.notices, *said))


async def _with_submodules(ctx: TurnContext, tree: OpenTree, turn: ClaimedTurn, ready: Ready) -> Ready:
    """Fill submodules; tell of those that stay empty."""
    if not (empty := await ctx.fill_submodules(tree, turn.worktree, ready.head)):
        return ready
    told, said = remarks.submodules_empty(empty), notices.submodules_empty(empty)
    return replace(ready, remarks=(*ready.remarks, told), notices=(*ready.notices, said))


def _needed(turn: ClaimedTurn) -> tuple[str, ...]:
    """Return what fetches the branches that the turn needs; nothing, which means all, if the default one is unknown.

    The others are fetched while the agent works.
    """
    row, default = turn.worktree, turn.worktree.repository.default_branch
    if default is None or not refs.is_branch(default):
        return ()
    of_issue = refs.issue_refspecs(row.start) if isinstance(row.start, IssueBranch) else ()
    head = row.start.branch if isinstance(row.start, HeadBranch) else None
    names = filter(None, (default, row.base_branch, row.branch, head, turn.switch_to))
    return (*of_issue, *map(refs.refspec, dict.fromkeys(names)))


def _needs_no_history(turn: ClaimedTurn) -> bool:
    """Return whether the turn's new worktree starts at the tip of a branch: nothing is compared before the agent."""
    row = turn.worktree
    is_at_tip = isinstance(row.start, IssueBranch | HeadBranch) and turn.ask.pinned_sha is None
    return is_at_tip and not row.is_made and turn.switch_to is None and turn.so_far.answer is None


async def _closes_by_now(ctx: TurnContext, turn: ClaimedTurn) -> tuple[int, ...] | None:
    """Return the issues that a pull request closes, where GitHub did not tell them when its worktree was chosen.

    None where there is nothing to ask, or GitHub does not tell them now.
    """
    own, number = turn.worktree, turn.conversation.number
    if not own.ask_closes or not own.is_made or own.conversations != (number,) or turn.so_far.answer is not None:
        return None
    return await closed_issues(ctx.github, own.repository, number, ctx.sleep)


async def _know_default_branch(tree: OpenTree, turn: ClaimedTurn) -> None:
    """Take the default branch, for a new worktree, as GitHub named it with the request, or just now if that waited."""
    name = turn.worktree.repository.default_branch
    if not turn.worktree.is_made and isinstance(turn.worktree.start, IssueBranch) and name and refs.is_branch(name):
        await tree.know_default_branch(name)


async def _prepare(
    ctx: TurnContext, tree: OpenTree, turn: ClaimedTurn, on_progress: Callable[[str], None] | None
) -> Ready | NotReady:
    if turn.ask.pinned_sha is not None and (moved := await _head_moved(tree, turn)) is not None:
        return NotReady(moved)
    if not turn.worktree.is_made:
        require_room(ctx)
        return await _made(ctx, tree, turn)
    found = await tree.look(turn.worktree.branch)
    turn, switched = await switch_if_needed(ctx, tree, turn, found)
    if switched:
        found = await tree.look(turn.worktree.branch)
    if isinstance(found, Missing):
        ready = await _made_again(ctx, tree, turn, found, on_progress)
    else:
        ready = await _synced(ctx, tree, turn)
    if isinstance(ready, CheckoutRefused):
        return NotReady(reasons.no_worktree(ready.next_step))
    return replace(ready, notices=(*switched, *ready.notices))


async def _made(ctx: TurnContext, tree: OpenTree, turn: ClaimedTurn) -> Ready | NotReady:
    made = await _make(ctx, tree, turn)
    if isinstance(made, CheckoutRefused):
        return NotReady(reasons.no_worktree(made.next_step))
    await _note_kept(ctx, turn, rescue_ref(ctx, turn), made)
    words: tuple[str, ...] = ()
    start = turn.worktree.start
    if isinstance(start, HeadBranch) and made.branch is None:
        return _off_branch(Ready(None, None, made.tip, edits_since=made.tip), start.branch)
    if isinstance(start, IssueBranch) and made.branch is not None and refs.is_flat(made.branch, start):
        words = (notices.other_name(made.branch, await tree.taken_folder(start)),)
    ready = Ready(made.branch, made.base_branch or turn.worktree.base_branch, made.tip, notices=words)
    return await _in_step(ctx, tree, turn, ready)


async def _make(ctx: TurnContext, tree: OpenTree, turn: ClaimedTurn) -> Created | CheckoutRefused:
    """Make the worktree on the branch that the turn needs, or else on its earlier branch, or else as its row says."""
    rescue = rescue_ref(ctx, turn)
    start = HeadBranch(turn.switch_to) if turn.switch_to else _at_pinned_head(refs.start_again(turn.worktree), turn)
    made = await tree.make(start, rescue)
    if isinstance(made, CheckoutRefused) and made.why == "no-remote-branch" and turn.switch_to is None:
        start = _at_pinned_head(turn.worktree.start, turn)
        made = await tree.make(start, rescue)
    if isinstance(made, CheckoutRefused) and made.why == "no-remote-branch" and isinstance(start, HeadBranch):
        now = await _head_now(ctx, tree, turn, start.branch)
        start = HeadBranch(now.head_ref) if now.is_open else DetachedHead(await _last_head(tree, turn), _head_ref(turn))
        made = await tree.make(start, rescue)
    if isinstance(made, CheckoutRefused) and made.why == "branch-in-use":
        await join_worktree_on_branch(ctx, tree, turn, start)
    return made


def _at_pinned_head(start: Start, turn: ClaimedTurn) -> Start:
    """Return `start`, for a fork at the head of the latest request."""
    return replace(start, sha=turn.ask.pinned_sha or start.sha) if isinstance(start, DetachedHead) else start


def rescue_ref(ctx: TurnContext, turn: ClaimedTurn) -> str:
    """Return the ref for work that is in the way of this worktree."""
    return refs.rescue_ref(str(turn.worktree.id), ctx.clock())


async def _head_moved(tree: OpenTree, turn: ClaimedTurn) -> str | None:
    """Return the reason to refuse a fork whose head was pushed after the request, or None."""
    now = await tree.fetch_ref(f"refs/pull/{turn.conversation.number}/head")
    return None if now == turn.ask.pinned_sha else reasons.head_moved(turn.ask.pinned_sha)


async def _made_again(
    ctx: TurnContext,
    tree: OpenTree,
    turn: ClaimedTurn,
    missing: Missing,
    on_progress: Callable[[str], None] | None,
) -> Ready | CheckoutRefused:
    """Make the worktree again at the same path."""
    _log.warning("worktree-missing", path=turn.worktree.path, why=missing.why)
    require_room(ctx)
    # The damage may be in the clone: a worktree made again from that would break too.
    replaced = await tree.replace_if_damaged(on_progress) if missing.corrupt else None
    await worktrees.forget_setup(ctx.pool, turn.worktree.id)
    rescue = rescue_ref(ctx, turn)
    start, tip = _at_pinned_head(turn.worktree.start, turn), turn.ask.pinned_sha or turn.worktree.start_sha
    made = await tree.make_again(turn.worktree.branch, tip, rescue, start)
    if isinstance(made, CheckoutRefused):
        return made
    await _note_kept(ctx, turn, rescue, made)
    clone_words = (notices.clone_replaced(replaced),) if replaced else ()
    words = (*clone_words, notices.worktree_remade(made.branch, made.kept))
    base = made.base_branch or turn.worktree.base_branch
    ready = Ready(made.branch, base, made.tip, missing.why, notices=words)
    gone = await _head_gone(ctx, tree, turn)
    return (
        await _in_step(ctx, tree, turn, ready)
        if gone is None
        else replace(gone, made_again=missing.why, notices=(*words, *gone.notices))
    )


async def _in_step(ctx: TurnContext, tree: OpenTree, turn: ClaimedTurn, ready: Ready) -> Ready:
    """Let a worktree that was made of the branch in the clone follow what people did to it on GitHub since."""
    if ready.branch is None or await tree.clone.tip(ready.branch) in (None, ready.head):
        return ready
    rescue = rescue_ref(ctx, turn)
    told, said = _words(ctx, await tree.sync(ready.branch, rescue), turn, None, rescue)
    head = (await tree.checkout()).commit or ready.head
    return replace(ready, head=head, remarks=(*ready.remarks, *told), notices=(*ready.notices, *said))


# The head branch of a pull request, which may be anywhere


def _head_ref(turn: ClaimedTurn) -> str:
    """Return the ref under which GitHub keeps the last head of the worktree's pull request."""
    return f"refs/pull/{turn.worktree.owner}/head"


async def _last_head(tree: OpenTree, turn: ClaimedTurn) -> str:
    return await tree.fetch_ref(_head_ref(turn))


async def _head_now(ctx: TurnContext, tree: OpenTree, turn: ClaimedTurn, branch: str) -> Pull:
    """Return the pull request of a branch that was not fetched. Raises NotThereYetError where GitHub will show it soon:
    it closes a pull request whose branch is deleted.
    """
    async with tree.let_go():
        pull = await ctx.github.pull(turn.worktree.repository, turn.worktree.owner)
    if pull.is_open and pull.head_ref != branch:
        await tree.fetch(pull.head_ref)
    if pull.is_open and await tree.clone.tip(pull.head_ref) is None:
        raise NotThereYetError(pull.head_ref)
    return pull


async def _head_gone(ctx: TurnContext, tree: OpenTree, turn: ClaimedTurn) -> Ready | None:
    """Return the worktree off its pull request's branch, or on that of its new name, where GitHub has it no more."""
    row, branch, rescue = turn.worktree, refs.head_branch(turn.worktree), rescue_ref(ctx, turn)
    if branch is None or await tree.clone.tip(branch) is not None:
        return None
    now = await _head_now(ctx, tree, turn, branch)
    if now.is_open and await tree.switch(branch, now.head_ref) is None:
        head = (await tree.checkout()).commit or ""
        return Ready(now.head_ref, row.base_branch, head, notices=(notices.renamed(branch, now.head_ref),))
    onto = await _last_head(tree, turn)
    told, said = _words(ctx, await tree.detach(branch, onto, rescue), turn, None, rescue)
    ready = Ready(None, row.base_branch, (await tree.checkout()).commit or onto, edits_since=onto)
    return _off_branch(replace(ready, remarks=told, notices=said), branch)


def _off_branch(ready: Ready, branch: str) -> Ready:
    told, said = (*ready.remarks, remarks.branch_gone(branch)), (*ready.notices, notices.branch_gone(branch))
    return replace(ready, remarks=told, notices=said)


async def _synced(ctx: TurnContext, tree: OpenTree, turn: ClaimedTurn) -> Ready | CheckoutRefused:
    """Bring the worktree up to date, after a fetch."""
    row, checkout = turn.worktree, await tree.checkout()
    if (gone := await _head_gone(ctx, tree, turn)) is not None:
        return gone
    stray: tuple[str, ...] = ()
    branch = refs.head_branch(row) or row.branch
    if isinstance(row.start, HeadBranch) and branch is not None and checkout.branch is None:
        # Its branch was away, and is there again.
        left = await tree.return_to_branch(branch, RescueLabel(row.id, branch, row.conversations, ctx.clock()))
        stray = (notices.stray_work(left.ref, left.uncovered),) if left is not None else ()
    rescue = rescue_ref(ctx, turn)
    if turn.ask.pinned_sha is not None:
        synced = await tree.sync_detached(turn.ask.pinned_sha, rescue)
    else:
        # A pull request that shares the issue's worktree stays on its own branch.
        issue = row.start if isinstance(row.start, IssueBranch) and turn.conversation.kind == "issue" else None
        synced = await tree.sync(branch, rescue, issue, row.base_branch)
    told, said = _words(ctx, synced, turn, checkout.operation_in_progress(), rescue)
    restored = (notices.RECORD_RESTORED,) if checkout.restored else ()
    base = row.base_branch
    if synced is not None and synced.how == "continued":
        branch, base = synced.branch, synced.base_branch
    head = (await tree.checkout()).commit or ""
    return Ready(branch, base, head, remarks=told, notices=(*restored, *stray, *said))


async def _note_kept(ctx: TurnContext, turn: ClaimedTurn, rescue: str, made: Created) -> None:
    """Record a directory that was kept whole as a rescue."""
    if made.kept is not None:
        await rescues.record(ctx.pool, turn.worktree.id, refs.rescue_time(rescue), kept=made.kept)


def _words(ctx: TurnContext, synced: Synced | None, turn: ClaimedTurn, unfinished: str | None, rescue: str) -> Words:
    """Describe the sync; `rescue` is the ref for what it left."""
    kind, branch, resumes = ctx.verbs.kind_of(turn.ask), turn.worktree.branch or "", turn.so_far.resuming
    told, said = _of_sync(synced, branch, rescue, by_itself=resumes) if synced is not None else ((), ())
    if synced is not None and not kind.tells_dirty and synced.how in ("dirty", "diverged", "rewritten"):
        said = ()
    if unfinished is not None:
        told = (*told, remarks.unfinished(unfinished))
        said = said if resumes or not kind.tells_unfinished else (*said, notices.unfinished(unfinished))
    return told, said


def _of_sync(synced: Synced, branch: str, rescue: str, *, by_itself: bool) -> Words:
    """Describe the sync. `by_itself`: the changes in the worktree are this turn's own, from before it was cut off."""
    ahead, behind, now = synced.ahead, synced.behind, synced.branch
    match synced.how:
        case "fast-forwarded":
            return (remarks.fast_forwarded(behind),), ()
        case "dirty":
            said = () if by_itself and not behind else (notices.uncommitted(synced.files, behind),)
            return (remarks.dirty(synced.files, behind),), said
        case "rewritten":
            dirty = (remarks.dirty(synced.files, 0),) if synced.files else ()
            return (remarks.rewritten(branch, ahead, behind), *dirty), (notices.rewritten(branch),)
        case "followed":
            return (remarks.followed(branch, ahead),), (notices.followed(branch, ahead, rescue),)
        case "diverged":
            return (remarks.diverged(ahead, behind),), (notices.diverged(branch),)
        case "off-branch":
            return (remarks.off_branch(now, branch),), () if by_itself else (notices.off_branch(now, branch),)
        case "branch-deleted":
            return (remarks.branch_deleted(branch),), (notices.branch_deleted(branch),)
        case "continued":
            after = now or ""
            return (remarks.continued(branch, after),), (notices.continued(branch, after, synced.base_branch),)
        case _:
            assert_never(synced.how)


async def files_seen(run: TurnRun) -> Seen | None:
    """Return what a turn that does not write could change; None where its sandbox lets it change nothing.

    Raises GitError, OSError.
    """
    if run.kind.writes or run.ctx.git.sandbox.isolates:
        return None
    return await run.tree.fingerprint()


async def base_of(run: TurnRun, ready: Ready) -> str | None:
    """Return the base of the branch: that of its open pull request, if there is one. Raises GitHubError."""
    turn, repository = run.turn, run.turn.worktree.repository
    if ready.branch is not None:
        pulls = [one for one in await run.ctx.github.pulls_of(repository, ready.branch) if one.is_open]
        if pulls:
            return next((one.base for one in pulls if one.number == turn.conversation.number), pulls[0].base)
    return ready.base_branch or repository.default_branch
