"""Before a turn: an existing worktree is checked, repaired, made again, or brought up to date."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from bot.clones import entries
from bot.clones.admin import Missing
from bot.clones.clone import CloneLock, replace_if_damaged
from bot.clones.start import Refused, RefusedReason
from bot.git import refs
from bot.messages import notices, reasons
from bot.model import HeadBranch, IssueBranch, Start
from bot.run import prompt
from bot.run.context import TurnContext
from bot.store import rescues, worktrees
from bot.store.turns import ClaimedTurn
from bot.worktrees.create import Created, examine, recreate
from bot.worktrees.sync import (
    Ahead,
    BranchDeleted,
    Continued,
    Dirty,
    Diverged,
    FastForwarded,
    NoRemoteBranch,
    OffBranch,
    OfIssue,
    Synced,
    UpToDate,
    sync,
    sync_detached,
)

Words = tuple[tuple[str, ...], tuple[str, ...]]
"""What the agent is told, and what the thread is told."""


@dataclass(frozen=True, slots=True)
class CheckoutState:
    """A worktree before its turn.

    `made_again`: the reason for that. `remarks` go to the agent, `notices` to the thread.
    """

    branch: str | None
    base_branch: str | None
    head: str
    made_again: str | None
    remarks: tuple[str, ...]
    notices: tuple[str, ...]


async def restore_or_sync(
    ctx: TurnContext,
    lock: CloneLock,
    turn: ClaimedTurn,
    start: Start,
    rescue: str,
    on_progress: Callable[[str], None] | None,
) -> CheckoutState | Refused:
    """Examine the worktree of a turn, after a fetch; make it again or bring it up to date.

    Raises GitError, InvalidNameError, OSError.
    """
    path, tip = Path(turn.worktree.path), turn.pinned_sha or turn.worktree.start_sha
    found = await examine(lock, path, turn.worktree.branch)
    if isinstance(found.state, Missing):
        # The damage may be in the clone: a worktree made again from that would break too.
        replaced = await replace_if_damaged(lock, on_progress) if found.state.corrupt else None
        async with ctx.pool.acquire() as connection:
            await worktrees.forget_setup(connection, turn.worktree.id)
        made = await recreate(lock, path, turn.worktree.branch, tip, rescue, start)
        if isinstance(made, Refused):
            return made
        await note_kept(ctx, turn, rescue, made)
        clone_words = (notices.clone_replaced(replaced),) if replaced else ()
        words = (*clone_words, notices.worktree_remade(made.branch, made.kept))
        return CheckoutState(
            made.branch, made.base_branch or turn.worktree.base_branch, made.tip, found.state.why, (), words
        )
    branch = turn.worktree.branch if isinstance(turn.worktree.start, HeadBranch) else None
    if branch and await lock.clone.commit_at(refs.remote(branch)) is None:
        return Refused(RefusedReason.NO_REMOTE_BRANCH, reasons.branch_gone(branch))
    if turn.pinned_sha is not None:
        synced = await sync_detached(lock, path, turn.pinned_sha, rescue)
    else:
        synced = await sync(lock, path, turn.worktree.branch, _issue(turn))
    unfinished = await entries.operation_in_progress(lock.clone, path)
    told, said = _words(synced, turn, unfinished)
    mended = (notices.worktree_mended(),) if found.mended else ()
    head = await entries.head_of(lock.clone, path) or ""
    if isinstance(synced, Continued):
        return CheckoutState(synced.branch, synced.base_branch, head, None, told, (*mended, *said))
    return CheckoutState(turn.worktree.branch, turn.worktree.base_branch, head, None, told, (*mended, *said))


async def note_kept(ctx: TurnContext, turn: ClaimedTurn, rescue: str, made: Created) -> None:
    """Record a directory that was kept whole as a rescue."""
    if made.kept is not None:
        async with ctx.pool.acquire() as connection:
            await rescues.record(connection, turn.worktree.id, refs.rescue_time(rescue), kept=made.kept)


def _issue(turn: ClaimedTurn) -> OfIssue | None:
    """Return None for a pull request that shares the issue's worktree: it stays on its own branch."""
    of_issue = isinstance(turn.worktree.start, IssueBranch) and turn.kind == "issue"
    return OfIssue(turn.worktree.owner, turn.worktree.base_branch) if of_issue else None


def _words(synced: Synced, turn: ClaimedTurn, unfinished: str | None) -> Words:
    told, said = _of_sync(synced, turn.worktree.branch or "", by_itself=turn.resuming)
    if unfinished is None:
        return told, said
    return (*told, prompt.unfinished(unfinished)), (
        *said,
        *(() if turn.resuming else (notices.unfinished(unfinished),)),
    )


def _of_sync(synced: Synced, branch: str, *, by_itself: bool) -> Words:
    """`by_itself`: the changes in the worktree are this turn's own, from before it was cut off."""
    match synced:
        case UpToDate() | NoRemoteBranch() | Ahead():
            return (), ()
        case FastForwarded(commits=commits):
            return (prompt.fast_forwarded(commits),), ()
        case Dirty(files=files, behind=behind):
            said = () if by_itself and not behind else (notices.uncommitted(files, behind),)
            return (prompt.dirty(files, behind),), said
        case Diverged(rewritten=True, ahead=ahead, behind=behind):
            return (prompt.rewritten(branch, ahead, behind),), (notices.rewritten(branch),)
        case Diverged(ahead=ahead, behind=behind):
            return (prompt.diverged(ahead, behind),), (notices.diverged(branch),)
        case OffBranch(current=current):
            return (prompt.off_branch(current, branch),), () if by_itself else (notices.off_branch(current, branch),)
        case BranchDeleted():
            return (prompt.branch_deleted(branch),), (notices.branch_deleted(branch),)
        case Continued(branch=after, base_branch=base):
            return (prompt.continued(branch, after),), (notices.continued(branch, after, base),)
        case _:
            assert_never(synced)
