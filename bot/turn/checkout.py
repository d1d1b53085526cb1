"""Before a turn: fetch the clone, then make, check, repair or update the worktree."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import assert_never

import structlog

from bot.check.running import undo
from bot.handlers.assign_worktree import closed_issues
from bot.model import DetachedHead, HeadBranch, IssueBranch, Start
from bot.node.room import require_room
from bot.prompt import remarks
from bot.prompt.foreign import Told
from bot.store import rescues, worktrees
from bot.store.turns import ClaimedTurn
from bot.thread import notices, reasons
from bot.tree.clone.admin import Missing
from bot.tree.clone.checkout import look_at, require_checkout
from bot.tree.clone.clone import CheckoutRefused, CloneLock, DefaultBranch, clone_lock
from bot.tree.clone.fetch import NoAccess, fetch_ref, replace_after, replace_if_damaged, update
from bot.tree.clone.start import start_again, taken_folder
from bot.tree.clone.status import Change
from bot.tree.create import Created, Reopened, create, recreate, reopen
from bot.tree.git import refs
from bot.tree.git.errors import GitError
from bot.tree.lfs.objects import Provided, provide
from bot.tree.lfs.pointers import LFS, filter_lines
from bot.tree.sync import (
    BranchDeleted,
    Continued,
    Dirty,
    Diverged,
    FastForwarded,
    OffBranch,
    OfIssue,
    Synced,
    sync,
    sync_detached,
)
from bot.turn.context import TurnContext
from bot.turn.switching import join_worktree_on_branch, share_by_now, switch_if_needed
from bot.turn.turn_run import TurnRun

_log = structlog.get_logger()
Words = tuple[tuple[Told, ...], tuple[str, ...]]
"""Remarks for the agent, and notices for the thread."""
Seen = tuple[str | None, tuple[tuple[Change, int, int], ...]]
"""The commit of a worktree, and what differs from it: each file with its time and size."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The worktree is ready. `made_again`: the reason for that. `remarks` go to the agent, `notices` to the thread."""

    branch: str | None
    base_branch: str | None
    head: str
    made_again: str | None = None
    remarks: tuple[Told, ...] = ()
    notices: tuple[str, ...] = ()


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
    async with clone_lock(ctx.clone(turn.worktree.folder)) as lock:
        needed, newest = _needed(turn), _needs_no_history(turn)
        updated = await update(lock, _address(ctx, turn), on_progress, needed, newest=newest and bool(needed))
        await confirmed
        if isinstance(updated, NoAccess):
            return NotReady(reasons.cannot_fetch(turn.worktree.repository.full_name))
        lock = replace(lock, default=await _default_branch(lock, turn), lets_go=True)
        replaced = updated.replaced
        try:
            shares = await share_by_now(ctx, lock, turn, closes) if closes is not None else ()
            ready = await _prepare(ctx, lock, turn, on_progress)
        except GitError as error:
            shares, replaced = (), await replace_after(error, lock, on_progress)
            ready = await _prepare(ctx, lock, turn, on_progress)
        if isinstance(ready, NotReady):
            return ready
        if turn.so_far.answer is None and ready.head and (lines := await filter_lines(lock.clone, ready.head)):
            ready = await _with_content(ctx, lock, turn, ready, lines)
        if lock.clone.is_shallow:
            ready = replace(ready, remarks=(*ready.remarks, remarks.history_arriving()))
    words = (notices.clone_replaced(replaced),) if replaced is not None else ()
    return replace(ready, notices=(*words, *shares, *ready.notices))


async def _with_content(
    ctx: TurnContext, lock: CloneLock, turn: ClaimedTurn, ready: Ready, lines: tuple[str, ...]
) -> Ready:
    """Give files under Git LFS their content; tell of those that stay pointers, and of other filters."""
    of_lfs = tuple(line for line in lines if lock.clone.git.lfs and f"filter={LFS}" in line.split())
    left = Provided()
    if of_lfs:
        left = await provide(await require_checkout(lock, ctx.directory(turn.worktree.path)), ready.head)
    others = tuple(line for line in lines if line not in of_lfs)
    told = (
        *([remarks.filtered(others)] if others else []),
        *([remarks.lfs(of_lfs, (*left.beyond, *left.refused))] if of_lfs else []),
    )
    said = (
        *([notices.lfs_beyond(left.beyond)] if left.beyond else []),
        *([notices.lfs_refused(left.refused, left.why)] if left.refused else []),
    )
    return replace(ready, remarks=(*ready.remarks, *told), notices=(*ready.notices, *said))


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


async def _default_branch(lock: CloneLock, turn: ClaimedTurn) -> DefaultBranch | None:
    """Return the default branch, for a new worktree; None where the clone has no such branch.

    GitHub named it with the request, or just now if the request has waited.
    """
    name = turn.worktree.repository.default_branch
    if turn.worktree.is_made or not isinstance(turn.worktree.start, IssueBranch) or not (name and refs.is_branch(name)):
        return None
    tip = await lock.clone.commit_at(refs.remote(name))
    return DefaultBranch(name, tip) if tip is not None else None


async def _prepare(
    ctx: TurnContext, lock: CloneLock, turn: ClaimedTurn, on_progress: Callable[[str], None] | None
) -> Ready | NotReady:
    if turn.ask.pinned_sha is not None and (moved := await _head_moved(lock, turn)) is not None:
        return NotReady(moved)
    if not turn.worktree.is_made:
        require_room(ctx)
        return await _made(ctx, lock, turn)
    found = await reopen(lock, ctx.directory(turn.worktree.path), turn.worktree.branch)
    if isinstance(found, Missing):
        ctx.check_note(turn.worktree.id).unlink(missing_ok=True)
    elif ctx.check_note(turn.worktree.id).exists():
        # A check was cut off, in this turn or in one that did not go on.
        await undo(ctx, lock, turn.worktree)
        found = await reopen(lock, ctx.directory(turn.worktree.path), turn.worktree.branch)
    turn, switched = await switch_if_needed(ctx, lock, turn, found)
    if switched:
        found = await reopen(lock, ctx.directory(turn.worktree.path), turn.worktree.branch)
    if isinstance(found, Missing):
        ready = await _made_again(ctx, lock, turn, found, on_progress)
    else:
        ready = await _synced(ctx, turn, found)
    if isinstance(ready, CheckoutRefused):
        return NotReady(reasons.no_worktree(ready.next_step))
    return replace(ready, notices=(*switched, *ready.notices))


async def _made(ctx: TurnContext, lock: CloneLock, turn: ClaimedTurn) -> Ready | NotReady:
    made = await _make(ctx, lock, turn)
    if isinstance(made, CheckoutRefused):
        return NotReady(reasons.no_worktree(made.next_step))
    await _note_kept(ctx, turn, rescue_ref(ctx, turn), made)
    words: tuple[str, ...] = ()
    start = turn.worktree.start
    if isinstance(start, IssueBranch) and made.branch is not None and refs.is_flat(made.branch, start):
        words = (notices.other_name(made.branch, await taken_folder(lock.clone, start) or refs.folders_of(start)[0]),)
    return Ready(made.branch, made.base_branch or turn.worktree.base_branch, made.tip, notices=words)


async def _make(ctx: TurnContext, lock: CloneLock, turn: ClaimedTurn) -> Created | CheckoutRefused:
    """Make the worktree on the branch that the turn needs, or else on its earlier branch, or else as its row says."""
    path, rescue = ctx.directory(turn.worktree.path), rescue_ref(ctx, turn)
    start = HeadBranch(turn.switch_to) if turn.switch_to else _at_pinned_head(start_again(turn.worktree), turn)
    made = await create(lock, path, start, rescue)
    if isinstance(made, CheckoutRefused) and made.why == "no-remote-branch" and turn.switch_to is None:
        start = _at_pinned_head(turn.worktree.start, turn)
        made = await create(lock, path, start, rescue)
    if isinstance(made, CheckoutRefused) and made.why == "branch-in-use":
        await join_worktree_on_branch(ctx, lock, turn, start)
    return made


def _at_pinned_head(start: Start, turn: ClaimedTurn) -> Start:
    """Return `start`, for a fork at the head of the latest request."""
    return replace(start, sha=turn.ask.pinned_sha or start.sha) if isinstance(start, DetachedHead) else start


def rescue_ref(ctx: TurnContext, turn: ClaimedTurn) -> str:
    """Return the ref for work that is in the way of this worktree."""
    return refs.rescue_ref(str(turn.worktree.id), ctx.clock())


async def _head_moved(lock: CloneLock, turn: ClaimedTurn) -> str | None:
    """Return the reason to refuse a fork whose head was pushed after the request, or None."""
    now = await fetch_ref(lock, f"refs/pull/{turn.conversation.number}/head")
    return None if now == turn.ask.pinned_sha else reasons.head_moved(turn.ask.pinned_sha)


async def _made_again(
    ctx: TurnContext,
    lock: CloneLock,
    turn: ClaimedTurn,
    missing: Missing,
    on_progress: Callable[[str], None] | None,
) -> Ready | CheckoutRefused:
    """Make the worktree again at the same path."""
    _log.warning("worktree-missing", path=turn.worktree.path, why=missing.why)
    require_room(ctx)
    # The damage may be in the clone: a worktree made again from that would break too.
    replaced = await replace_if_damaged(lock, on_progress) if missing.corrupt else None
    await worktrees.forget_setup(ctx.pool, turn.worktree.id)
    path, rescue = ctx.directory(turn.worktree.path), rescue_ref(ctx, turn)
    start, tip = _at_pinned_head(turn.worktree.start, turn), turn.ask.pinned_sha or turn.worktree.start_sha
    made = await recreate(lock, path, turn.worktree.branch, tip, rescue, start)
    if isinstance(made, CheckoutRefused):
        return made
    await _note_kept(ctx, turn, rescue, made)
    clone_words = (notices.clone_replaced(replaced),) if replaced else ()
    words = (*clone_words, notices.worktree_remade(made.branch, made.kept))
    base = made.base_branch or turn.worktree.base_branch
    return Ready(made.branch, base, made.tip, missing.why, notices=words)


async def _synced(ctx: TurnContext, turn: ClaimedTurn, found: Reopened) -> Ready | CheckoutRefused:
    """Bring the worktree up to date, after a fetch."""
    checkout = found.checkout
    branch = turn.worktree.branch if isinstance(turn.worktree.start, HeadBranch) else None
    if branch and await checkout.clone.commit_at(refs.remote(branch)) is None:
        return CheckoutRefused(reasons.branch_gone(branch))
    if turn.ask.pinned_sha is not None:
        synced = await sync_detached(checkout, turn.ask.pinned_sha, rescue_ref(ctx, turn))
    else:
        synced = await sync(checkout, turn.worktree.branch, _issue(turn), found.state)
    told, said = _words(ctx, synced, turn, checkout.operation_in_progress())
    mended = (notices.WORKTREE_MENDED,) if found.mended else ()
    now = synced if isinstance(synced, Continued) else turn.worktree
    head = (await checkout.read_head()).commit or ""
    return Ready(now.branch, now.base_branch, head, remarks=told, notices=(*mended, *said))


async def _note_kept(ctx: TurnContext, turn: ClaimedTurn, rescue: str, made: Created) -> None:
    """Record a directory that was kept whole as a rescue."""
    if made.kept is not None:
        await rescues.record(ctx.pool, turn.worktree.id, refs.rescue_time(rescue), kept=made.kept)


def _issue(turn: ClaimedTurn) -> OfIssue | None:
    """Return None for a pull request that shares the issue's worktree: it stays on its own branch."""
    start = turn.worktree.start
    if not isinstance(start, IssueBranch) or turn.conversation.kind != "issue":
        return None
    return OfIssue(start, turn.worktree.base_branch)


def _words(ctx: TurnContext, synced: Synced, turn: ClaimedTurn, unfinished: str | None) -> Words:
    kind, resumes = ctx.kind_of(turn.ask), turn.so_far.resuming
    told, said = _of_sync(synced, turn.worktree.branch or "", by_itself=resumes)
    if not kind.tells_dirty and isinstance(synced, Dirty | Diverged):
        said = ()
    if unfinished is not None:
        told = (*told, remarks.unfinished(unfinished))
        said = said if resumes or not kind.tells_unfinished else (*said, notices.unfinished(unfinished))
    return told, said


def _of_sync(synced: Synced, branch: str, *, by_itself: bool) -> Words:
    """Describe the sync. `by_itself`: the changes in the worktree are this turn's own, from before it was cut off."""
    match synced:
        case None:
            return (), ()
        case FastForwarded(commits=commits):
            return (remarks.fast_forwarded(commits),), ()
        case Dirty(files=files, behind=behind):
            said = () if by_itself and not behind else (notices.uncommitted(files, behind),)
            return (remarks.dirty(files, behind),), said
        case Diverged(rewritten=True, ahead=ahead, behind=behind):
            return (remarks.rewritten(branch, ahead, behind),), (notices.rewritten(branch),)
        case Diverged(ahead=ahead, behind=behind):
            return (remarks.diverged(ahead, behind),), (notices.diverged(branch),)
        case OffBranch(current=current):
            return (remarks.off_branch(current, branch),), () if by_itself else (notices.off_branch(current, branch),)
        case BranchDeleted():
            return (remarks.branch_deleted(branch),), (notices.branch_deleted(branch),)
        case Continued(branch=after, base_branch=base):
            return (remarks.continued(branch, after),), (notices.continued(branch, after, base),)
        case _:
            assert_never(synced)


async def files_seen(run: TurnRun) -> Seen | None:
    """Return what a turn that does not write could change; None where its sandbox lets it change nothing.

    Raises GitError, OSError.
    """
    ctx, row = run.ctx, run.turn.worktree
    if run.kind.writes or ctx.git.cage.isolates:
        return None
    found = await look_at(ctx.clone(row.folder), ctx.directory(row.path))
    if isinstance(found, Missing):
        return None, ()
    files = []
    for change in await found.changes():
        try:
            stat = (found.path / change.name).lstat()
            files.append((change, stat.st_mtime_ns, stat.st_size))
        except OSError:
            files.append((change, 0, 0))
    return found.head.commit, tuple(files)
