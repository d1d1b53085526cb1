"""A rescue brought back into a live worktree: missing commits on its branch, staged files staged, the rest as files."""

import os
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from bot.clones import entries
from bot.clones.admin import Missing, admin_directory
from bot.clones.clone import Clone, CloneLock
from bot.clones.importing import import_commits
from bot.failpoints import reached
from bot.rescue.apply import Disputed, apply_rescue, in_the_way, plan
from bot.rescue.message import RescuedCommits
from bot.rescue.save import AUTHOR
from bot.rescue.scratch_git import TIMEOUT_SECONDS, scratch_git_dir
from bot.rescue.stored import read_rescue

# In the folder of the worktree's HEAD: which rescue was being restored when it was cut off.
MARK = "threadtree-restoring"
_MOST_NAMES = 5

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Restored:
    """`commits` came to the branch, and `files` are as they were, staged ones staged.

    `elsewhere` are commits that were not on the way of this branch: they are in the rescue only. `whole`: the directory
    that was kept beside the commit came back as well; `left` says why it did not.
    """

    commits: int
    files: int
    elsewhere: tuple[str, ...] = ()
    whole: bool = False
    left: str | None = None


@dataclass(frozen=True, slots=True)
class RestoreRefused:
    """Nothing was changed, and the rescue stays; `why` goes on with what to do, for people."""

    why: str


async def restore_rescue(lock: CloneLock, path: Path, branch: str | None, sha: str) -> Restored | RestoreRefused:
    """Brings the rescue commit `sha` back into the worktree on `branch` (None: detached). Again, it changes nothing.

    The branch only ever goes forward, and no file is overwritten that holds anything else than HEAD or the rescue. A
    merge or rebase is not entered again; its files come back as they were. One that was cut off can be repeated. Raises
    GitError, OSError, InvalidNameError.
    """
    clone = lock.clone
    kept = await read_rescue(clone, sha)
    if kept is None:
        return RestoreRefused("the rescued commit is not in this clone any more")
    state = await ready(lock, path, branch)
    if isinstance(state, RestoreRefused):
        return state
    head, goal = await entries.head_of(clone, path), await _goal(clone, kept)
    forward = goal is not None and head != goal and (head is None or await clone.is_ancestor(head, goal))
    if goal and head and not forward and not await clone.is_ancestor(goal, head):
        return RestoreRefused(
            f"the branch has gone another way since; merging `{goal}` into it brings the commits back"
        )
    async with scratch_git_dir(clone, path, head) as own:
        planned = await plan(own, goal, goal if forward else head, sha, kept.staged)
        if isinstance(planned, Disputed):
            return RestoreRefused(f"newer commits changed {_listed(planned.names)} too; `{sha}` has the rescued files")
        if marked(state) != sha and (lost := await in_the_way(own, planned, head)):
            return RestoreRefused(f"{_listed(lost)} hold uncommitted work; commit it or reset the worktree first")
    mark(state, sha)
    reached("restore-begun")
    commits = 0
    if goal is not None and forward:
        commits = await clone.count(goal, *([f"^{head}"] if head else []))
        await clone.on_worktree(path, "reset", "--quiet", "--hard", goal, timeout_seconds=TIMEOUT_SECONDS)
        await import_commits(lock, path, branch)
        head = goal
    reached("commits-restored")
    async with scratch_git_dir(clone, path, head) as own:
        files = await apply_rescue(own, planned, head)
    # What is as HEAD has it shall look so without being read again.
    await clone.on_worktree(path, "update-index", "-q", "--refresh", check=False, timeout_seconds=TIMEOUT_SECONDS)
    reached("files-restored")
    await _put_stashes_back(clone, path, kept.stashes)
    (state / MARK).unlink()
    _log.info("restored", path=str(path), sha=sha, commits=commits, files=files)
    return Restored(commits, files, await _elsewhere(clone, kept, head))


async def ready(lock: CloneLock, path: Path, branch: str | None) -> Path | RestoreRefused:
    """The folder with the worktree's HEAD and index, if it can take what was rescued. Raises GitError, OSError."""
    clone = lock.clone
    admin, state = admin_directory(clone.path, path), await clone.state_folder(path)
    if isinstance(admin, Missing) or state is None:
        return RestoreRefused("there is no worktree to restore it into")
    await entries.clear_stale_locks(clone, path)
    await import_commits(lock, path, branch)
    operation = await entries.operation_in_progress(clone, path)
    if operation is not None:
        return RestoreRefused(f"a {operation} is in progress in the worktree; end it or reset the worktree first")
    current = await entries.branch_of(clone, path)
    if current != branch:
        return RestoreRefused(f"the worktree is on {current or 'no branch'} instead of {branch or 'no branch'}")
    return state


async def _goal(clone: Clone, kept: RescuedCommits) -> str | None:
    """The commit that the branch is to have: where HEAD was if that continued the branch, else where the branch was."""
    if kept.head is None or kept.tip is None:
        return kept.head or kept.tip
    return kept.head if await clone.is_ancestor(kept.tip, kept.head) else kept.tip


async def _elsewhere(clone: Clone, kept: RescuedCommits, head: str | None) -> tuple[str, ...]:
    commits = [commit for commit in (kept.head, *kept.others) if commit is not None]
    return tuple([one for one in commits if head is None or not await clone.is_ancestor(one, head)])


async def _put_stashes_back(clone: Clone, path: Path, stashes: Sequence[str]) -> None:
    listed = await clone.on_worktree(path, "reflog", "show", "--format=%H", "refs/stash", check=False)
    there = listed.text.split() if listed.status == 0 else []
    for stash in reversed([one for one in stashes if one not in there]):
        subject = (await clone.run("show", "--no-patch", "--format=%s", stash)).text
        arguments = ("stash", "store", "--quiet", f"--message={subject}", stash)
        stored = await clone.on_worktree(path, *arguments, check=False, environment=AUTHOR.environment)
        if stored.status != 0:  # the rescue still has it
            _log.warning("stash-not-restored", path=str(path), sha=stash, problem=stored.stderr)


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(repr(name) for name in sorted(names)[:_MOST_NAMES])
    return shown + (f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else "")


def marked(state: Path) -> str | None:
    """What was being restored when it was cut off."""
    try:
        descriptor = os.open(state / MARK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(300).decode(errors="replace") if stat.S_ISREG(os.fstat(descriptor).st_mode) else None


def mark(state: Path, what: str) -> None:
    """Notes what is being restored. Raises OSError."""
    # An agent can write in this folder: nothing of its making is followed.
    (state / MARK).unlink(missing_ok=True)
    descriptor = os.open(state / MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(what.encode())
