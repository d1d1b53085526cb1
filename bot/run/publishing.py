"""After a turn that is done: commit what the agent left and push the worktree's branch."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never
from urllib.parse import quote

import structlog

from bot.clones.clone import Clone, CloneLock, clone_lock
from bot.clones.importing import import_commits
from bot.git import refs
from bot.git.runner import Identity
from bot.messages import notices
from bot.messages.notices import PushRule
from bot.messages.redact import holds_secret
from bot.messages.tracking import Changes
from bot.run.checkout import Ready, rescue_ref
from bot.run.context import TurnContext
from bot.store.turns import ClaimedTurn
from bot.worktrees.commit import Committed, NothingToCommit, Unresolved, commit_all, return_to_branch
from bot.worktrees.push import NothingToPush, Parked, Pushed, Rejected, as_patch, changes, push

_log = structlog.get_logger()

NOREPLY_HOST = "users.noreply"
"""https://docs.github.com/account-and-profile/reference/email-addresses-reference#your-noreply-email-address"""

# What runs with the repository's secrets: https://docs.github.com/actions/reference/workflows-and-actions
WORKFLOW_FOLDERS = (".github/workflows/", ".github/actions/")


@dataclass(frozen=True, slots=True)
class Guard:
    """The rules of this bot: the `protected` branches that it never pushes to, and the `secrets` that it knows."""

    protected: frozenset[str]
    secrets: tuple[str, ...]
    allow_workflow_changes: bool

    async def forbids(self, clone: Clone, branch: str, park_as: str) -> PushRule | None:
        """Return the rule that forbids to push the local `branch`, or None. A forbidden push is withheld whole.

        `park_as` is the branch that takes the commits if they do not merge.
        """
        if not self.protected.isdisjoint((branch, park_as)):
            return "protected-branch"
        tip = await clone.commit_at(refs.local(branch))
        if tip is None:
            return None
        unpublished = (tip, "--not", "--remotes=origin")
        if not self.allow_workflow_changes and await _touches_workflows(clone, unpublished):
            return "workflow-files"
        return "secret" if await self._holds_secret(clone, unpublished) else None

    async def _holds_secret(self, clone: Clone, unpublished: Iterable[str]) -> bool:
        # Messages, names and every changed line, of binary files too. `--cc`: also lines that only a merge added.
        told = ("--format=%an%n%ae%n%cn%n%ce%n%B", "--patch", "--cc", "--text", "--no-ext-diff", "--no-textconv")
        written = await clone.run("log", *told, "--no-renames", *unpublished, "--")
        return holds_secret(written.stdout.decode("utf-8", "replace"), self.secrets)


async def _touches_workflows(clone: Clone, unpublished: Iterable[str]) -> bool:
    # `-c`: of a merge only what neither parent has. What it brings from the base branch is on GitHub already.
    names = await clone.run("log", "--format=", "--name-only", "-z", "--no-renames", "-c", *unpublished, "--")
    # Some file systems ignore case, and GitHub reads only lower case: the folder is guarded in any spelling.
    return any(name.strip("\n").casefold().startswith(WORKFLOW_FOLDERS) for name in names.fields)


async def guard_of(ctx: TurnContext, turn: ClaimedTurn, ready: Ready) -> Guard:
    """Return the rules for this push. The default branch and protected branches are among them. Raises GitHubError."""
    protected = {name for name in (turn.worktree.repository.default_branch, ready.base_branch) if name}
    if ready.branch and await ctx.github.is_protected(turn.worktree.repository, ready.branch):
        protected.add(ready.branch)
    return Guard(frozenset(protected), ctx.secrets, ctx.allow_workflow_changes)


async def publish(
    ctx: TurnContext, turn: ClaimedTurn, ready: Ready, head_before: str, guard: Guard
) -> tuple[Changes | str | None, list[str]]:
    """Commit and push; return what changed and the notices for the thread. Raises GitError, OSError."""
    told: list[str] = []
    path = Path(turn.worktree.path)
    async with clone_lock(ctx.clone(turn.worktree.folder)) as lock:
        if ready.branch is None:
            return await _as_patch(ctx, lock, turn, path, head_before, told), told
        stray = await return_to_branch(lock, path, ready.branch, rescue_ref(ctx, turn), ctx.author)
        if stray is not None:
            # What is left are files that another branch ignored: no work of this turn.
            told.append(notices.stray_work(stray.ref))
        elif not await _commit(ctx, lock, turn, path, told):
            return None, told
        branch = await _push(ctx, lock, turn, path, ready.branch, guard, told)
        changed = await _changes(ctx, lock, turn, branch, head_before) if branch else None
        return changed, told


async def _commit(ctx: TurnContext, lock: CloneLock, turn: ClaimedTurn, path: Path, told: list[str]) -> bool:
    """Commit what is uncommitted; return False if conflicts prevent it."""
    result = await commit_all(lock, path, _message(turn), ctx.author, _requester(turn))
    match result:
        case Committed(left_out=left_out) | NothingToCommit(left_out=left_out):
            if left_out:
                told.append(notices.files_left_out(left_out))
            return True
        case Unresolved(files=files):
            told.append(notices.unresolved(files))
            return False
        case _:
            assert_never(result)


async def _push(
    ctx: TurnContext,
    lock: CloneLock,
    turn: ClaimedTurn,
    path: Path,
    branch: str,
    guard: Guard,
    told: list[str],
) -> str | None:
    """Push; return the branch on GitHub that now has the work, or None if nothing was pushed."""
    await import_commits(lock, path, branch)
    park_as = f"{branch}-turn-{turn.id}"
    if (rule := await guard.forbids(lock.clone, branch, park_as)) is not None:
        told.append(notices.not_pushed(rule, branch))
        return None
    result = await push(lock, path, branch, park_as, ctx.author)
    match result:
        case NothingToPush() | Pushed():
            return branch
        case Parked(branch=parked):
            url = f"{ctx.server_url}/{turn.worktree.repository.full_name}/tree/{quote(parked)}"
            told.append(notices.pushed_elsewhere(parked, url, branch))
            return parked
        case Rejected(detail=detail):
            _log.warning("push-rejected", turn=turn.id, branch=branch, detail=detail)
            told.append(notices.push_failed(branch))
            return None
        case _:
            assert_never(result)


async def _changes(
    ctx: TurnContext, lock: CloneLock, turn: ClaimedTurn, branch: str, head_before: str
) -> Changes | None:
    """Return what the turn changed on GitHub since the commit it began at, also where an earlier run of it pushed."""
    after = await lock.clone.commit_at(refs.remote(branch))
    if after is None or after == head_before or await lock.clone.commit_at(head_before) is None:
        return None
    commits = await lock.clone.count(after, f"^{head_before}")
    stat = await changes(lock.clone, head_before, after)
    url = f"{ctx.server_url}/{turn.worktree.repository.full_name}/compare/{head_before}...{after}"
    return Changes(branch, url, commits, stat.files, stat.insertions, stat.deletions)


async def _as_patch(
    ctx: TurnContext, lock: CloneLock, turn: ClaimedTurn, path: Path, head_before: str, told: list[str]
) -> str | None:
    """Commit in a detached worktree, which is never pushed; return its edits for the reply."""
    await _commit(ctx, lock, turn, path, told)
    await import_commits(lock, path, None)
    base = turn.pinned_sha or turn.worktree.start_sha or head_before
    patch = (await as_patch(lock.clone, path, base)).decode("utf-8", "replace")
    return patch or None


def _message(turn: ClaimedTurn) -> str:
    """Return the commit's message: the first line of the request, and where it was made."""
    first = next((line.strip() for line in turn.request.splitlines() if line.strip()), turn.title)
    subject = first if len(first) <= 72 else f"{first[:71].rstrip()}…"
    return f"{subject}\n\nAsked in {turn.worktree.repository.full_name}#{turn.number}, turn {turn.id}."


def _requester(turn: ClaimedTurn) -> Identity:
    host = turn.worktree.repository.platform.partition(":")[0]
    return Identity(turn.requested_by, f"{turn.requested_by_id}+{turn.requested_by}@{NOREPLY_HOST}.{host}")
