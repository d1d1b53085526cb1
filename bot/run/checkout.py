"""Before a turn: fetch the clone, then make, check or update the worktree."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bot.clones.clone import CloneLock, NoAccess, clone_lock, fetch_ref, replace_if_damaged, update
from bot.clones.start import Refused, RefusedReason, start_again
from bot.git import refs
from bot.git.errors import GitError, GitProblem
from bot.messages import notices, reasons
from bot.model import DetachedHead, HeadBranch, Start
from bot.run.checkout_state import note_kept, restore_or_sync
from bot.run.context import TurnContext
from bot.run.switching import join_worktree_on_branch, switch_if_needed
from bot.store.turns import ClaimedTurn
from bot.worktrees.create import Created, create


@dataclass(frozen=True, slots=True)
class Ready:
    """The worktree is ready. `made_again`: the reason for that. `remarks` go to the agent, `notices` to the thread."""

    branch: str | None
    base_branch: str | None
    head: str
    made_again: str | None = None
    remarks: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NotReady:
    """No worktree can be made: the turn is refused, never run in another checkout (DESIGN.md §3.4)."""

    reason: str


async def prepare(
    ctx: TurnContext, turn: ClaimedTurn, on_progress: Callable[[str], None] | None = None
) -> Ready | NotReady:
    """Make, recover or update the turn's worktree; `on_progress` gets short lines on the progress of a fetch.

    Raises TurnMovedError if the turn now waits in another worktree; GitError, InvalidNameError, OSError.
    """
    full_name = turn.worktree.repository.full_name
    async with clone_lock(ctx.clone(turn.worktree.folder)) as lock:
        updated = await update(lock, f"{ctx.server_url}/{full_name}.git", on_progress)
        if isinstance(updated, NoAccess):
            return NotReady(reasons.cannot_fetch(full_name))
        replaced = updated.replaced
        try:
            ready = await _prepare(ctx, lock, turn, on_progress)
        except GitError as error:
            if error.problem is not GitProblem.CORRUPT:
                raise
            replaced = await replace_if_damaged(lock, on_progress)
            if replaced is None:
                raise
            ready = await _prepare(ctx, lock, turn, on_progress)
    if replaced is None or isinstance(ready, NotReady):
        return ready
    return replace(ready, notices=(notices.clone_replaced(replaced), *ready.notices))


async def _prepare(
    ctx: TurnContext, lock: CloneLock, turn: ClaimedTurn, on_progress: Callable[[str], None] | None
) -> Ready | NotReady:
    if turn.pinned_sha is not None and (moved := await _head_moved(lock, turn)) is not None:
        return NotReady(moved)
    if not turn.worktree.is_made:
        return await _made(ctx, lock, turn)
    turn, switched = await switch_if_needed(ctx, lock, turn)
    found = await restore_or_sync(
        ctx, lock, turn, _at_pinned_head(turn.worktree.start, turn), rescue_ref(ctx, turn), on_progress
    )
    if isinstance(found, Refused):
        return NotReady(reasons.no_worktree(found.next_step))
    said = (*switched, *found.notices)
    return Ready(found.branch, found.base_branch, found.head, found.made_again, found.remarks, said)


async def _made(ctx: TurnContext, lock: CloneLock, turn: ClaimedTurn) -> Ready | NotReady:
    made = await _make(ctx, lock, turn)
    if isinstance(made, Refused):
        return NotReady(reasons.no_worktree(made.next_step))
    await note_kept(ctx, turn, rescue_ref(ctx, turn), made)
    return Ready(made.branch, made.base_branch or turn.worktree.base_branch, made.tip)


async def _make(ctx: TurnContext, lock: CloneLock, turn: ClaimedTurn) -> Created | Refused:
    """Make the worktree on the branch that the turn needs, or else on its earlier branch, or else as its row says."""
    path, rescue = Path(turn.worktree.path), rescue_ref(ctx, turn)
    start = HeadBranch(turn.switch_to) if turn.switch_to else _at_pinned_head(start_again(turn.worktree), turn)
    made = await create(lock, path, start, rescue)
    if isinstance(made, Refused) and made.reason is RefusedReason.NO_REMOTE_BRANCH and turn.switch_to is None:
        start = _at_pinned_head(turn.worktree.start, turn)
        made = await create(lock, path, start, rescue)
    if isinstance(made, Refused) and made.reason is RefusedReason.BRANCH_IN_USE:
        await join_worktree_on_branch(ctx, lock, turn, start)
    return made


def _at_pinned_head(start: Start, turn: ClaimedTurn) -> Start:
    """Return `start`, for a fork at the head of the latest request."""
    return replace(start, sha=turn.pinned_sha or start.sha) if isinstance(start, DetachedHead) else start


def rescue_ref(ctx: TurnContext, turn: ClaimedTurn) -> str:
    """Return the ref for work that is in the way of this worktree."""
    return refs.rescue_ref(str(turn.worktree.id), ctx.clock())


async def _head_moved(lock: CloneLock, turn: ClaimedTurn) -> str | None:
    """Return the reason to refuse a fork whose head was pushed after the request, or None."""
    now = await fetch_ref(lock, f"refs/pull/{turn.number}/head")
    return None if now == turn.pinned_sha else reasons.head_moved(turn.pinned_sha or "")
