"""Problems that pass: a turn that meets one before its agent begins, or after its agent's end, waits instead of failing
(DESIGN.md §3.9).
"""

import errno
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from bot.github.errors import GitHubError, Transient, Unauthenticated
from bot.node.room import DiskShortError
from bot.refs import InvalidNameError
from bot.sandbox.system import UnsafeCommandError
from bot.store.failures import is_transient
from bot.thread.reasons import WaitReason, WaitStep
from bot.tree import GitError, GitProblem

SHORTEST = timedelta(seconds=15)
LONGEST = timedelta(minutes=10)
PATIENCE = timedelta(hours=24)
"""After so long in a row the turn fails, with the problem as its reason."""
LIMIT_PATIENCE = timedelta(days=8)
"""After so long a turn no longer waits for a vendor: the longest quotas are of a week."""
BUSY_PATIENCE = timedelta(hours=1)
"""After so long in a row a model that takes no requests, and names no time, fails the turn."""

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class NotThereYetError(Exception):
    """GitHub does not show a branch that it has."""

    def __init__(self, branch: str) -> None:
        super().__init__(f"GitHub does not show the branch {branch}")


_KNOWN = (GitError, GitHubError, InvalidNameError, NotThereYetError, UnsafeCommandError, OSError)


@dataclass(frozen=True, slots=True)
class Blocked:
    """Issues, as `owner/name#1`, for which a turn waits, in `words`; with `asks`, for a person to decide about them."""

    words: str
    by: tuple[str, ...] = ()
    asks: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """The turn is put back until a time. `since` is when the first of these problems was met.

    `holds_writer`: no turn with these credentials may start before. `step` is what the turn does then.
    """

    why: WaitReason | Blocked
    until: datetime
    since: datetime | None = None
    holds_writer: bool = False
    step: WaitStep = "start"


class MustWaitError(Exception):
    """The turn may not begin yet, though nothing went wrong."""

    def __init__(self, wait: Wait) -> None:
        super().__init__(wait.why)
        self.wait = wait


End = Literal["not-published", "failed", "crashed"]
"""How a turn ends after a problem: done but for its push, failed for this reason, or by a bug."""


def after(
    problem: Exception,
    since: datetime | None,
    now: datetime,
    *,
    began: bool,
    answered: bool,
    disk_is_full: bool = False,
) -> Wait | End:
    """Return how a turn goes on after a problem. One that passes is waited for, unless it met the agent at its work.

    `began`: this run has prompted the agent. `answered`: the agent is done. `disk_is_full`: then that is the problem,
    which git does not always say. `since` is as in `wait_for`.
    """
    if answered or not began:
        is_of_disk = disk_is_full and isinstance(problem, (GitError, OSError))
        met = OSError(errno.ENOSPC, str(problem)) if is_of_disk else problem
        wait = wait_for(met, since, now, "publish" if answered else "start")
        if wait is not None:
            return wait
    if not isinstance(problem, _KNOWN):
        return "crashed"
    return "not-published" if answered else "failed"


def wait_for(problem: BaseException, since: datetime | None, now: datetime, step: WaitStep = "start") -> Wait | None:
    """Return how to wait until `problem` has passed; None where it does not pass, or lasts too long already.

    `since` is when the turn met the first problem in a row.
    """
    why = passing(problem)
    since = since or now
    if why is None or now - since >= PATIENCE:
        return None
    pause = _pause(since, now)
    asked = problem.retry_after_seconds if isinstance(problem, Transient) else None
    if asked is not None:
        pause = max(pause, timedelta(seconds=asked))
    return Wait(why, now + pause, since, holds_writer=why == "github-limit", step=step)


def wait_for_model(reset: datetime | None, asked_at: datetime, since: datetime | None, now: datetime) -> Wait | None:
    """Return the wait of a turn whose agent's model takes no requests; None where the turn waited too long.

    `reset` is when it takes requests again by the vendor's answer. One that is busy for some minutes, or for a time
    that is not named, is tried again for an hour. `since` is as in `wait_for`.
    """
    if reset is not None and reset - now > LONGEST:
        return Wait("usage-limit", reset, step="agent") if now - asked_at < LIMIT_PATIENCE else None
    since = since or now
    if now - since >= BUSY_PATIENCE:
        return None
    return Wait("model-busy", max(reset or now, now + _pause(since, now)), since, step="agent")


def _pause(since: datetime, now: datetime) -> timedelta:
    """Each wait is as long as all before it."""
    return min(max(now - since, SHORTEST), LONGEST)


def passing(problem: BaseException) -> WaitReason | None:
    """Return what is waited for after a problem; None if it does not pass by itself."""
    match problem:
        case Transient(scope="installation"):
            return "github-limit"
        case Transient() | GitError(problem=GitProblem.NETWORK):
            return "github-away"
        case GitError(problem=GitProblem.TIMEOUT, talked_to_server=True):
            return "github-away"
        # A 403 is a lack of permission, which an operator has to grant.
        case GitError(problem=GitProblem.AUTH, is_unauthenticated=True):
            return "credentials"
        case Unauthenticated():
            return "credentials"
        case GitError(problem=GitProblem.LOCKED):
            return "files-locked"
        case GitError(problem=GitProblem.KILLED):
            return "git-killed"
        case GitError(problem=GitProblem.DISK_FULL):
            return "disk-full"
        case DiskShortError():
            return "disk-short"
        case NotThereYetError():
            return "branch-not-there"
        case OSError(errno=code) if code in _DISK_FULL:
            return "disk-full"
        case _:
            return "database-away" if is_transient(problem) else None
