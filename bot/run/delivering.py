"""After a turn that is done: what the agent left is committed and the worktree's branch is pushed."""

from pathlib import Path
from typing import assert_never
from urllib.parse import quote

import structlog

from bot import sentences
from bot.run import entries
from bot.run.checkout import Ready, rescue_ref
from bot.run.clone import CloneLock, clone_lock
from bot.run.commit import Committed, NothingToCommit, StrayWork, Unresolved, commit_all, settle_head
from bot.run.ends import Change
from bot.run.git import Identity
from bot.run.publish import NothingToPush, Parked, Pushed, Rejected, Withheld, as_patch, changes, push
from bot.run.workshop import Workshop
from bot.store.turns import ClaimedTurn

_log = structlog.get_logger()

NOREPLY_HOST = "users.noreply"
"""https://docs.github.com/account-and-profile/reference/email-addresses-reference#your-noreply-email-address"""


async def deliver(
    shop: Workshop, turn: ClaimedTurn, ready: Ready, forbidden: frozenset[str]
) -> tuple[Change, list[str]]:
    """Commits and pushes; returns the change and what the thread must be told. Raises GitError, OSError."""
    notices: list[str] = []
    path = Path(turn.path)
    async with clone_lock(shop.clone(turn.folder)) as lock:
        if ready.branch is None:
            return await _as_patch(shop, lock, turn, path, notices), notices
        settled = await settle_head(lock, path, ready.branch, rescue_ref(shop, turn), shop.author)
        if isinstance(settled, StrayWork):
            notices.append(sentences.stray_work(settled.ref))
        if not await _commit(shop, lock, turn, path, notices):
            return Change(branch=ready.branch), notices
        return await _push(shop, lock, turn, path, ready.branch, forbidden, notices), notices


async def _commit(shop: Workshop, lock: CloneLock, turn: ClaimedTurn, path: Path, notices: list[str]) -> bool:
    """Commits what is uncommitted; False where conflicts keep it from being committed."""
    result = await commit_all(lock, path, _message(turn), shop.author, _requester(turn))
    match result:
        case Committed(left_out=left_out) | NothingToCommit(left_out=left_out):
            if left_out:
                notices.append(sentences.files_left_out(left_out))
            return True
        case Unresolved(files=files):
            notices.append(sentences.unresolved(files))
            return False
        case _:
            assert_never(result)


async def _push(
    shop: Workshop,
    lock: CloneLock,
    turn: ClaimedTurn,
    path: Path,
    branch: str,
    forbidden: frozenset[str],
    notices: list[str],
) -> Change:
    result = await push(lock, path, branch, forbidden, f"{branch}-turn-{turn.id}", shop.author)
    match result:
        case NothingToPush():
            return Change(branch=branch)
        case Pushed(branch=name, before=before, after=after, commits=commits):
            return await _change(lock, turn, name, before, after, commits)
        case Parked(branch=name, after=after, commits=commits):
            notices.append(sentences.pushed_elsewhere(name, tree_url(shop, turn, name), branch))
            return await _change(lock, turn, name, None, after, commits)
        case Withheld(rule=rule):
            notices.append(sentences.not_pushed(rule.value, branch))
            return Change(branch=branch)
        case Rejected(detail=detail):
            _log.warning("push-rejected", turn=turn.id, branch=branch, detail=detail)
            notices.append(sentences.push_failed(branch))
            return Change(branch=branch)
        case _:
            assert_never(result)


async def _change(
    lock: CloneLock, turn: ClaimedTurn, branch: str, before: str | None, after: str, commits: int
) -> Change:
    base = before or await _base(lock, turn)
    stat = await changes(lock.clone, base, after) if base else None
    return Change(branch, before, after, commits, stat)


def tree_url(shop: Workshop, turn: ClaimedTurn, branch: str) -> str:
    """The branch's page."""
    return f"{shop.server_url}/{turn.repository.full_name}/tree/{quote(branch)}"


def compare_url(shop: Workshop, turn: ClaimedTurn, change: Change) -> str | None:
    """The page that shows what the push changed; None where nothing was pushed."""
    base = change.before or turn.base_branch or turn.repository.default_branch
    if change.after is None or base is None:
        return None
    return f"{shop.server_url}/{turn.repository.full_name}/compare/{quote(base)}...{change.after}"


async def _base(lock: CloneLock, turn: ClaimedTurn) -> str | None:
    """What a branch that is new on GitHub is compared with."""
    name = turn.base_branch or turn.repository.default_branch
    return await lock.clone.commit_at(f"refs/remotes/origin/{name}") if name else None


async def _as_patch(shop: Workshop, lock: CloneLock, turn: ClaimedTurn, path: Path, notices: list[str]) -> Change:
    """A detached worktree is never pushed: the reply carries its edits."""
    await _commit(shop, lock, turn, path, notices)
    base = turn.start[3] or await entries.head_of(lock.clone, path)
    if base is None:
        return Change()
    patch = (await as_patch(lock.clone, path, base)).decode("utf-8", "replace")
    return Change(patch=patch)


def _message(turn: ClaimedTurn) -> str:
    """The commit's message: what was asked, in one line, and where."""
    first = next((line.strip() for line in turn.request.splitlines() if line.strip()), turn.title)
    subject = first if len(first) <= 72 else f"{first[:71].rstrip()}…"
    return f"{subject}\n\nAsked in {turn.repository.full_name}#{turn.number}, turn {turn.id}."


def _requester(turn: ClaimedTurn) -> Identity:
    host = turn.repository.platform.partition(":")[0]
    return Identity(turn.requested_by, f"{turn.requested_by_id}+{turn.requested_by}@{NOREPLY_HOST}.{host}")
