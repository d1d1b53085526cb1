"""Before a turn: the clone is fetched, the worktree is there, checked and brought up to date."""

from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from bot import sentences
from bot.run import prompt
from bot.run.workshop import Workshop
from bot.run.worktrees import refs
from bot.run.worktrees.clone import CloneLock, clone_lock, ensure, fetch, fetch_ref
from bot.run.worktrees.entries import Missing, head_of, inspect
from bot.run.worktrees.git import GitError, GitProblem
from bot.run.worktrees.start import DetachedHead, HeadBranch, IssueBranch, Refused, Start
from bot.run.worktrees.worktree import (
    Ahead,
    Created,
    Dirty,
    Diverged,
    FastForwarded,
    NoRemoteBranch,
    OffBranch,
    Synced,
    UpToDate,
    create,
    follow_head,
    recreate,
    sync,
)
from bot.store.turns import ClaimedTurn


@dataclass(frozen=True, slots=True)
class Ready:
    """The worktree is there. `made_again` says why it had to be; `remarks` go to the agent, `notices` to the thread."""

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


def start_of(turn: ClaimedTurn) -> Start:
    """What the turn's worktree starts from, as its row tells."""
    kind, number, ref, sha = turn.start
    match kind:
        case "issue":
            return IssueBranch(number)
        case "head" if ref is not None:
            return HeadBranch(ref)
        case "detached" if ref is not None and sha is not None:
            return DetachedHead(turn.pinned_sha or sha, ref)  # of a fork the head that was asked for last
        case _:
            raise ValueError(f"worktree {turn.worktree_id} has no usable start")


async def prepare(shop: Workshop, turn: ClaimedTurn) -> Ready | NotReady:
    """Makes, recovers or updates the turn's worktree. Raises GitError, InvalidNameError, OSError."""
    path = Path(turn.path)
    async with clone_lock(shop.clone(turn.folder)) as lock:
        try:
            await ensure(lock, f"{shop.server_url}/{turn.repository.full_name}.git")
            await fetch(lock)
        except GitError as error:
            if error.problem in (GitProblem.AUTH, GitProblem.NOT_FOUND):
                return NotReady(sentences.cannot_fetch(turn.repository.full_name))
            raise
        if turn.pinned_sha is not None and (moved := await _head_moved(lock, turn)) is not None:
            return NotReady(moved)
        if not turn.worktree_made:
            return _ready(turn, await create(lock, path, start_of(turn), rescue_ref(shop, turn)))
        state = await inspect(lock.clone, path)
        if isinstance(state, Missing):
            again = await recreate(lock, path, turn.branch, turn.pinned_sha or turn.start[3], rescue_ref(shop, turn))
            return _ready(turn, again, made_again=state.why)
        if turn.pinned_sha is not None:
            synced = await follow_head(lock, path, turn.pinned_sha, rescue_ref(shop, turn))
        else:
            synced = await sync(lock, path, turn.branch)
        remarks, notices = _said(synced, turn.branch)
        head = await head_of(lock.clone, path) or ""
        return Ready(turn.branch, turn.base_branch, head, None, remarks, notices)


def rescue_ref(shop: Workshop, turn: ClaimedTurn) -> str:
    """Where work of this worktree is kept that would be in the way."""
    return refs.rescue_ref(str(turn.worktree_id), shop.clock())


async def _head_moved(lock: CloneLock, turn: ClaimedTurn) -> str | None:
    """A head pushed to a fork after the request was made is not what was asked for: the reason to refuse, or None."""
    now = await fetch_ref(lock, f"refs/pull/{turn.number}/head")
    return None if now == turn.pinned_sha else sentences.head_moved(turn.pinned_sha or "")


def _ready(turn: ClaimedTurn, made: Created | Refused, *, made_again: str | None = None) -> Ready | NotReady:
    match made:
        case Created(branch=branch, base_branch=base, tip=tip):
            notices = (sentences.worktree_remade(branch),) if made_again else ()
            return Ready(branch, base or turn.base_branch, tip, made_again, (), notices)
        case Refused(next_step=next_step):
            return NotReady(sentences.no_worktree(next_step))
        case _:
            assert_never(made)


def _said(synced: Synced, branch: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the agent, and what the thread is told of the state the turn starts in."""
    match synced:
        case UpToDate() | NoRemoteBranch() | Ahead():
            return (), ()
        case FastForwarded(commits=commits):
            return (prompt.fast_forwarded(commits),), ()
        case Dirty(files=files, behind=behind):
            return (prompt.dirty(files, behind),), ()
        case Diverged(ahead=ahead, behind=behind):
            return (prompt.diverged(ahead, behind),), (sentences.diverged(branch or ""),)
        case OffBranch(current=current):
            return (prompt.off_branch(current, branch or ""),), ()
        case _:
            assert_never(synced)
