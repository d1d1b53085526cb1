"""Which problems pass, and how long a turn waits for them."""

import errno
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from bot.github.errors import NotFound, Refused, Transient, Unauthenticated
from bot.node.room import DiskShortError
from bot.thread import reasons
from bot.thread.reasons import WaitReason
from bot.tree.git.errors import GitError, GitProblem
from bot.turn.waiting import LONGEST, PATIENCE, SHORTEST, wait_for, wait_for_model

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (Transient("installation", 90, "limit"), "github-limit"),
        (Transient("request", None, "502"), "github-away"),
        (GitError(GitProblem.NETWORK, "fetch", "could not resolve host"), "github-away"),
        (GitError(GitProblem.TIMEOUT, "fetch", ""), "github-away"),
        (GitError(GitProblem.TIMEOUT, "push", ""), "github-away"),
        (GitError(GitProblem.AUTH, "fetch", "Authentication failed for"), "credentials"),
        (GitError(GitProblem.LOCKED, "commit", ""), "files-locked"),
        (GitError(GitProblem.DISK_FULL, "commit", ""), "disk-full"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk-full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "disk-full"),
        (DiskShortError(reasons.DISK_SHORT), "disk-short"),
        (asyncpg.DiskFullError("x"), "database-away"),
        (Unauthenticated("bad credentials"), "credentials"),
        (asyncpg.ReadOnlySQLTransactionError("x"), "database-away"),
        (ConnectionRefusedError(), "database-away"),
        (TimeoutError(), "database-away"),
    ],
)
def test_a_problem_that_passes_is_waited_for(problem: Exception, why: WaitReason) -> None:
    wait = wait_for(problem, None, NOON)
    assert wait is not None
    assert (wait.why, wait.since, wait.holds_writer) == (why, NOON, why == "github-limit")
    assert reasons.waits(why, wait.until, NOON).endswith(" UTC. `/stop` ends the wait.")


@pytest.mark.parametrize(
    "problem",
    [
        NotFound("gone"),
        Refused(403, "no"),
        GitError(GitProblem.CORRUPT, "fetch", ""),
        GitError(GitProblem.NOT_FOUND, "push", "repository not found"),
        GitError(GitProblem.AUTH, "push", "Permission to acme/shop.git denied to bot."),
        GitError(GitProblem.TIMEOUT, "add", ""),
        GitError(GitProblem.OTHER, "push", ""),
        PermissionError(errno.EACCES, "Permission denied"),
        asyncpg.DataError("a value that Postgres cannot hold"),
        FileNotFoundError("no such file"),
        asyncpg.UniqueViolationError("x"),
        ValueError("a bug"),
    ],
)
def test_any_other_problem_is_not(problem: Exception) -> None:
    assert wait_for(problem, None, NOON) is None


def test_waits_grow_up_to_a_limit_and_end_after_a_day() -> None:
    away, now, pauses = Transient("request", None, "502"), NOON, []
    while (wait := wait_for(away, NOON, now)) is not None:
        pauses.append(wait.until - now)
        now = wait.until
    assert pauses[:4] == [SHORTEST, SHORTEST, 2 * SHORTEST, 4 * SHORTEST]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST
    assert now - NOON >= PATIENCE


def test_an_agent_waits_for_its_vendor_at_most_some_days() -> None:
    wait = wait_for_model(NOON + timedelta(hours=3), NOON, None, NOON)
    assert wait is not None
    assert (wait.why, wait.until, wait.step) == ("usage-limit", NOON + timedelta(hours=3), "agent")
    assert wait_for_model(NOON + timedelta(hours=3), NOON - timedelta(days=8), None, NOON) is None


@pytest.mark.parametrize("seconds", [None, 0, 90])
def test_a_model_that_is_busy_for_a_moment_is_tried_again_for_an_hour(seconds: int | None) -> None:
    now, since = NOON, None
    while (
        wait := wait_for_model(None if seconds is None else now + timedelta(seconds=seconds), NOON, since, now)
    ) is not None:
        assert wait.until >= now + max(timedelta(seconds=seconds or 0), SHORTEST)
        assert (wait.why, wait.step, wait.since) == ("model-busy", "agent", NOON)
        now, since = wait.until, wait.since
    assert timedelta(hours=1) <= now - NOON <= timedelta(hours=1, minutes=10)


def test_github_says_how_long_to_wait() -> None:
    wait = wait_for(Transient("installation", 3000, "limit"), None, NOON)
    assert wait is not None
    assert wait.until == NOON + timedelta(seconds=3000)
    assert isinstance(wait.why, str)
    assert "The next try is at 12:50 UTC" in reasons.waits(wait.why, wait.until - timedelta(seconds=1), NOON)
    assert "on 2026-05-03 at 12:00 UTC" in reasons.waits(wait.why, NOON + timedelta(days=2), NOON)
