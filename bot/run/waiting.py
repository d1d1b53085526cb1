"""Problems that pass: a turn that meets one before its agent begins waits instead of failing (DESIGN.md §3.9). Pure."""

import socket
from dataclasses import dataclass
from datetime import datetime, timedelta

from bot.git.errors import GitError, GitProblem
from bot.github.errors import Transient, Unauthenticated
from bot.messages.reasons import WaitReason
from bot.store.failures import is_transient

SHORTEST = timedelta(seconds=15)
LONGEST = timedelta(minutes=10)
PATIENCE = timedelta(hours=24)
"""After so long in a row the turn fails, with the problem as its reason."""
SHORTEST_FOR_LIMIT = timedelta(minutes=1)
LIMIT_PATIENCE = timedelta(days=8)
"""After so long a turn no longer waits for a vendor: the longest quotas are of a week."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The turn is put back until a time. `since` is when the first of these problems was met.

    `holds_writer`: no turn with these credentials may start before. `resumes`: the agent has begun and continues then.
    """

    why: WaitReason
    until: datetime
    since: datetime | None = None
    holds_writer: bool = False
    resumes: bool = False


def wait_for(problem: BaseException, since: datetime | None, now: datetime) -> Wait | None:
    """Return how to wait until `problem` has passed; None where it does not pass, or lasts too long already.

    `since` is when the turn met the first problem in a row.
    """
    why = _reason(problem)
    since = since or now
    if why is None or now - since >= PATIENCE:
        return None
    # Each wait is as long as all before it.
    pause = min(max(now - since, SHORTEST), LONGEST)
    asked = problem.retry_after_seconds if isinstance(problem, Transient) else None
    if asked is not None:
        pause = max(pause, timedelta(seconds=asked))
    return Wait(why, now + pause, since, holds_writer=why == "github-limit")


def wait_for_limit(reset: datetime, asked_at: datetime, now: datetime) -> Wait | None:
    """Return the wait of a turn whose agent met its model's usage limit; None where the turn waited too long."""
    if now - asked_at >= LIMIT_PATIENCE:
        return None
    return Wait("usage-limit", max(reset, now + SHORTEST_FOR_LIMIT), resumes=True)


def _reason(problem: BaseException) -> WaitReason | None:
    match problem:
        case Transient(scope="installation"):
            return "github-limit"
        case Transient() | GitError(problem=GitProblem.NETWORK | GitProblem.TIMEOUT):
            return "github-away"
        case Unauthenticated() | GitError(problem=GitProblem.AUTH):
            return "credentials"
        case ConnectionError() | TimeoutError() | socket.gaierror():
            return "database-away"
        case OSError():
            return None  # of a file: nothing says that it passes
        case _:
            return "database-away" if is_transient(problem) else None
