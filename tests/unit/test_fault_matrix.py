"""What each answer of GitHub, failure of git and error of Postgres means for a turn before and after its agent's work.

The effects are in `tests/end_to_end/test_waiting.py`, the step reply in `tests/integration/test_outbox.py`.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import asyncpg
import pytest

from bot.github.errors import Gone, NotFound, Refused, Transient, Unauthenticated, classify
from bot.tree.git.errors import GitError, GitProblem, problem_of
from bot.turn.waiting import PATIENCE, Wait, after

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
RESET = str(int((NOON + timedelta(minutes=30)).timestamp()))


@dataclass(frozen=True)
class Answer:
    """An answer of GitHub outside 2xx; `headers` have lower-case names."""

    status: int
    message: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    def error(self) -> Exception:
        body = b'{"message": "%s"}' % self.message.encode() if self.message else b"<html>"
        headers = {"date": format_datetime(NOON, usegmt=True), **dict(self.headers)}
        return classify(self.status, headers, body)


BAD_CREDENTIALS = Answer(401, "Bad credentials")
NO_RIGHT = Answer(403, "Resource not accessible by integration")
SECONDARY = Answer(403, "You have exceeded a secondary rate limit", (("retry-after", "90"),))
PRIMARY = Answer(403, "API rate limit exceeded", (("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", RESET)))
TOO_QUICK = Answer(422, "Validation Failed: body was submitted too quickly")
INVALID = Answer(422, "Validation Failed")


@pytest.mark.parametrize(
    ("answer", "kind", "scope", "seconds"),
    [
        (BAD_CREDENTIALS, Unauthenticated, None, None),
        (NO_RIGHT, Refused, None, None),
        (SECONDARY, Transient, "installation", 90),
        (Answer(403, "You have exceeded a secondary rate limit"), Transient, "installation", 60),
        (Answer(403, "You have triggered an abuse detection mechanism"), Transient, "installation", 60),
        (PRIMARY, Transient, "installation", 1801),
        (Answer(403, "", (("retry-after", "soon"),)), Transient, "installation", 60),
        (Answer(404, "Not Found"), NotFound, None, None),
        (Answer(410, "This issue was deleted"), Gone, None, None),
        (Answer(408), Transient, "request", None),
        (Answer(409, "Git Repository is empty."), Refused, None, None),
        (INVALID, Refused, None, None),
        (TOO_QUICK, Transient, "installation", 60),
        (Answer(429), Transient, "installation", 60),
        (Answer(429, "", (("retry-after", "5"),)), Transient, "installation", 5),
        (Answer(451, "Repository access blocked"), Refused, None, None),
        (Answer(500), Transient, "request", None),
        (Answer(502), Transient, "request", None),
        (Answer(503, "", (("retry-after", "20"),)), Transient, "request", 20),
        (Answer(504, "We couldn't respond to your request in time."), Transient, "request", None),
    ],
)
def test_an_answer_of_github_is_of_a_kind(
    answer: Answer, kind: type[Exception], scope: str | None, seconds: float | None
) -> None:
    error = answer.error()
    assert type(error) is kind
    if isinstance(error, Transient):
        assert (error.scope, error.retry_after_seconds) == (scope, seconds)
        # Only a request that GitHub refused for a limit had no effect for sure.
        assert error.may_have_happened == (scope == "request")


URL = "unable to access 'https://github.com/acme/shop.git/'"


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (f"fatal: {URL}: Could not resolve host: github.com", GitProblem.NETWORK),
        (f"fatal: {URL}: Failed to connect to github.com port 443 after 3 ms: Couldn't connect", GitProblem.NETWORK),
        (f"fatal: {URL}: The requested URL returned error: 503", GitProblem.NETWORK),
        (f"fatal: {URL}: The requested URL returned error: 429", GitProblem.NETWORK),
        (
            f"fatal: {URL}: GnuTLS recv error (-110): The TLS connection was",
            GitProblem.NETWORK,
        ),
        (f"fatal: {URL}: Empty reply from server", GitProblem.NETWORK),
        ("error: git-remote-http died of signal 9\nfatal: expected flush after ref listing", GitProblem.KILLED),
        ("fatal: full write to remote helper failed: Broken pipe", GitProblem.KILLED),
        ("remote: fatal: full write to remote helper failed: Broken pipe", GitProblem.OTHER),
        ("remote: error: index-pack died of signal 9\n ! [remote rejected] x -> x", GitProblem.REJECTED),
        ("error: RPC failed; curl 56 Recv failure\nfatal: the remote end hung up unexpectedly", GitProblem.NETWORK),
        (
            "error: RPC failed; HTTP 500\nfatal: early EOF",
            GitProblem.NETWORK,
        ),
        ("fatal: credential helper '!x' told us to quit", GitProblem.NETWORK),
        ("remote: Invalid username or token.\nfatal: Authentication failed for 'https://github.com/'", GitProblem.AUTH),
        (f"remote: Permission to acme/shop.git denied to bot.\nfatal: {URL}: … error: 403", GitProblem.AUTH),
        (
            "remote: Repository not found.\nfatal: repository 'https://x/' not found",
            GitProblem.NOT_FOUND,
        ),
        ("fatal: Unable to create '/d/repos/a/b.git/index.lock': File exists.", GitProblem.LOCKED),
        ("error: cannot lock ref 'refs/heads/x': is at 1 but expected 2", GitProblem.LOCKED),
        ("fatal: unable to write new index file: No space left on device", GitProblem.DISK_FULL),
        (
            "error: file write error: No space left on device\nfatal: x",
            GitProblem.DISK_FULL,
        ),
        ("fatal: write error: Disk quota exceeded\nfatal: fetch-pack: invalid index-pack output", GitProblem.DISK_FULL),
        ("remote: fatal: write error: No space left on device\n ! [remote rejected] x -> x", GitProblem.REJECTED),
        ("bwrap: Creating new namespace failed: No space left on device", GitProblem.OTHER),
        ("error: object file .git/objects/ab/cd is empty\nfatal: loose object abcd is corrupt", GitProblem.CORRUPT),
        ("fatal: bad object refs/heads/x", GitProblem.CORRUPT),
        ("fatal: something else", GitProblem.OTHER),
    ],
)
def test_a_failure_of_git_is_of_a_kind(said: str, problem: GitProblem) -> None:
    assert problem_of(said) is problem


def git(problem: GitProblem, command: str = "push", said: str = "") -> GitError:
    return GitError(problem, command, said)


PASSING = {
    "GitHub down": (Answer(502).error(), "github-away"),
    "GitHub's limit": (PRIMARY.error(), "github-limit"),
    "GitHub's second limit": (SECONDARY.error(), "github-limit"),
    "submitted too quickly": (TOO_QUICK.error(), "github-limit"),
    "token rotated": (BAD_CREDENTIALS.error(), "credentials"),
    "git without a network": (git(GitProblem.NETWORK), "github-away"),
    "git hangs": (git(GitProblem.TIMEOUT), "github-away"),
    "git with an old token": (git(GitProblem.AUTH, said="Authentication failed for 'x'"), "credentials"),
    "git finds a lock": (git(GitProblem.LOCKED), "files-locked"),
    "git is killed": (git(GitProblem.KILLED), "git-killed"),
    "git on a full disk": (git(GitProblem.DISK_FULL), "disk-full"),
    "a full disk": (OSError(28, "No space left on device"), "disk-full"),
    "database: no connection": (asyncpg.ConnectionDoesNotExistError("08"), "database-away"),
    "database: read only": (asyncpg.ReadOnlySQLTransactionError("25006"), "database-away"),
    "database: deadlock": (asyncpg.DeadlockDetectedError("40P01"), "database-away"),
    "database: full disk": (asyncpg.DiskFullError("53100"), "database-away"),
    "database: lock": (asyncpg.LockNotAvailableError("55P03"), "database-away"),
    "database: shutdown": (asyncpg.AdminShutdownError("57P01"), "database-away"),
    "database: input and output": (asyncpg.PostgresIOError("58030"), "database-away"),
    "database: internal": (asyncpg.InternalServerError("XX000"), "database-away"),
    "database: refused": (ConnectionRefusedError(111, "Connection refused"), "database-away"),
}
LASTING = {
    "no right": NO_RIGHT.error(),
    "deleted, or made private": Answer(404, "Not Found").error(),
    "gone": Answer(410).error(),
    "invalid": INVALID.error(),
    "git may not write": git(GitProblem.AUTH, said="Permission to acme/shop.git denied to bot. … error: 403"),
    "git: deleted": git(GitProblem.NOT_FOUND),
    "git: refused": git(GitProblem.REJECTED),
    "git: corrupt": git(GitProblem.CORRUPT),
    "git: endless here": git(GitProblem.TIMEOUT, "add"),
    "git: other": git(GitProblem.OTHER),
    "a file": PermissionError(13, "Permission denied"),
}
BUGS = {
    "22": asyncpg.DivisionByZeroError("22012"),
    "23": asyncpg.UniqueViolationError("23505"),
    "42": asyncpg.UndefinedColumnError("42703"),
    "a value": asyncpg.DataError("not storable"),
    "ours": KeyError("x"),
}


@pytest.mark.parametrize("name", PASSING)
def test_what_passes_is_waited_for_but_not_at_the_agents_work(name: str) -> None:
    problem, why = PASSING[name]
    for answered in (False, True):
        wait = after(problem, None, NOON, began=answered, answered=answered)
        assert isinstance(wait, Wait)
        assert (wait.why, wait.step, wait.since) == (why, "publish" if answered else "start", NOON)
        # Only GitHub's limit holds other conversations, and those of the same credentials only.
        assert wait.holds_writer == (why == "github-limit")
        # After a day without a pause it ends, with its reason.
        assert not isinstance(after(problem, NOON - PATIENCE, NOON, began=answered, answered=answered), Wait)
    assert not isinstance(after(problem, None, NOON, began=True, answered=False), Wait)


@pytest.mark.parametrize("name", LASTING)
def test_what_does_not_pass_ends_the_turn_with_its_reason(name: str) -> None:
    problem = LASTING[name]
    assert after(problem, None, NOON, began=False, answered=False) == "failed"
    assert after(problem, None, NOON, began=True, answered=False) == "failed"
    assert after(problem, None, NOON, began=True, answered=True) == "not-published"
    assert after(problem, None, NOON, began=False, answered=True) == "not-published"


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_ends_the_turn_as_one(name: str) -> None:
    for began in (False, True):
        for answered in (False, True):
            assert after(BUGS[name], None, NOON, began=began, answered=answered) == "crashed"


def test_git_on_a_full_disk_does_not_always_say_so() -> None:
    silent = git(GitProblem.OTHER, "worktree", "fatal: cannot update ref 'refs/heads/x': couldn't write 'x.lock'")
    wait = after(silent, None, NOON, began=False, answered=False, disk_is_full=True)
    assert isinstance(wait, Wait)
    assert wait.why == "disk-full"
    assert after(KeyError("x"), None, NOON, began=False, answered=False, disk_is_full=True) == "crashed"
