"""The start of a new worktree: an issue's branch, a pull request's branch, or one commit without a branch."""

from dataclasses import dataclass
from typing import assert_never

from bot import refs
from bot.model import DetachedHead, HeadBranch, IssueBranch, Start
from bot.thread import reasons
from bot.tree.clone import branch_history
from bot.tree.clone.branch_history import is_merged
from bot.tree.clone.clone import CheckoutRefused, Clone, CloneLock
from bot.tree.clone.fetch import complete, fetch_ref, remote_default_branch

_HERE, _REMOTE = "refs/heads/", "refs/remotes/origin/"


@dataclass(frozen=True, slots=True)
class StartPoint:
    """The commit to check out: `branch` at `commit`, or `commit` alone. `moves_from`: the local branch's tip before."""

    branch: str | None
    base_branch: str | None
    commit: str
    moves_from: str | None = None


async def resolve(lock: CloneLock, start: Start) -> StartPoint | CheckoutRefused:
    """Decide on branch and commit, after a fetch; change nothing. Raises GitError, InvalidNameError."""
    match start:
        case IssueBranch():
            return await _issue(lock, start)
        case HeadBranch(branch=branch):
            tip = await lock.clone.commit_at(refs.remote(branch))
            if tip is None:
                return CheckoutRefused(reasons.branch_gone(branch), "no-remote-branch")
            return await _branch(lock, branch, None, tip)
        case DetachedHead(sha, ref_to_fetch):
            fetched = await fetch_ref(lock, ref_to_fetch)
            known = refs.is_commit(sha) and await lock.clone.commit_at(sha) is not None
            return StartPoint(None, None, sha if known else fetched)
        case _:
            assert_never(start)


async def branch_of(lock: CloneLock, start: Start) -> str | None:
    """Return the branch on which a new worktree would be made. Raises GitError, InvalidNameError."""
    point = await resolve(lock, start)
    return point.branch if isinstance(point, StartPoint) else None


async def _issue(lock: CloneLock, issue: IssueBranch) -> StartPoint | CheckoutRefused:
    clone = lock.clone
    if clone.is_shallow and (await _branches(clone, issue))[1]:
        await complete(lock)  # to tell which of them are merged
    default = await remote_default_branch(lock)
    if isinstance(default, CheckoutRefused):
        return default
    base = await clone.commit_at(refs.remote(default.name)) or default.tip
    local, remote = await _branches(clone, issue)
    unmerged = [
        branch
        for branch in local.keys() | remote.keys()
        for tip in (local.get(branch), remote.get(branch))
        if tip and not await is_merged(clone, tip, base, None)
    ]

    def sequel(branch: str) -> int:
        return refs.sequel_of(branch, issue) or 1

    if unmerged:
        branch = max(unmerged, key=sequel)
    else:
        # A branch that was on the remote and is merged is finished: its name is not used again.
        pushed = [branch for branch in local if await branch_history.last_pushed(clone, branch)]
        branch = await issue_branch(clone, issue, max(map(sequel, (*remote, *pushed)), default=0) + 1)
    return await _branch(lock, branch, default.name, remote.get(branch, base))


async def issue_branch(clone: Clone, issue: IssueBranch, sequel: int) -> str:
    """Return the name of an issue's branch: without a folder where a branch is named like the folder. Raises GitError.

    That branch is on GitHub, or checked out here from an earlier request.
    """
    return refs.issue_branch(issue, sequel, flat=await taken_folder(clone, issue) is not None)


async def taken_folder(clone: Clone, issue: IssueBranch) -> str | None:
    """Return the branch that has the name of a folder of the issue's branches. Raises GitError."""
    for folder in refs.folders_of(issue):
        for name in (refs.local(folder), refs.remote(folder)):
            if await clone.commit_at(name) is not None:
                return folder
    return None


async def _branches(clone: Clone, issue: IssueBranch) -> list[dict[str, str]]:
    """Return the tips of an issue's branches here, and on the remote. Raises GitError."""
    spaces, names = (_HERE, _REMOTE), [refs.issue_branch(issue, flat=flat) for flat in (False, True)]
    found = await clone.refs(*(f"{space}{name}*" for space in spaces for name in names))
    named = [{ref[len(space) :]: tip for ref, tip in found.items() if ref.startswith(space)} for space in spaces]
    return [{name: tip for name, tip in one.items() if refs.sequel_of(name, issue) is not None} for one in named]


async def in_its_way(clone: Clone, namespace: str, branch: str) -> str | None:
    """Return a branch in `namespace` whose name and that of `branch` exclude each other: one is a folder of the other.

    Raises GitError.
    """
    for above in (branch[:end] for end in range(len(branch)) if branch[end] == "/"):
        if await clone.commit_at(f"{namespace}{above}") is not None:
            return above
    below = await clone.refs(f"{namespace}{branch}/")
    return next((ref.removeprefix(namespace) for ref in below), None)


async def _branch(lock: CloneLock, branch: str, base_branch: str | None, onto: str) -> StartPoint | CheckoutRefused:
    """Return the local branch, fast-forwarded to `onto` if possible; without a local branch, a new one at `onto`."""
    clone = lock.clone
    tip = await clone.commit_at(refs.local(branch))
    if tip is None:
        if (other := await in_its_way(clone, _HERE, branch)) is not None:
            return CheckoutRefused(reasons.branch_name_taken(branch, other))
        return StartPoint(branch, base_branch, onto)
    return StartPoint(branch, base_branch, onto if await clone.is_ancestor(tip, onto) else tip, tip)


async def start_branch(lock: CloneLock, point: StartPoint) -> str:
    """Make the branch if there is none; return the full ref or the commit for HEAD. Raises GitError."""
    clone, branch, commit = lock.clone, point.branch, point.commit
    if branch is None:
        return commit
    if point.moves_from is None:
        theirs = refs.remote(branch)
        at = ("--track", branch, theirs) if await clone.commit_at(theirs) == commit else ("--no-track", branch, commit)
        await clone.run("branch", "--quiet", *at)
    return refs.local(branch)
