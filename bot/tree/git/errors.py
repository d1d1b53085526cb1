"""Errors of git, classified by its stderr. Pure."""

import re
from enum import StrEnum

TALKS_TO_SERVER = frozenset({"fetch", "push", "ls-remote"})


class GitProblem(StrEnum):
    """The kinds of failure that callers act on."""

    NOT_FOUND = "not found"
    AUTH = "auth"
    NETWORK = "network"
    REJECTED = "rejected"
    LOCKED = "locked"
    DISK_FULL = "disk full"
    CORRUPT = "corrupt"
    TIMEOUT = "timeout"
    KILLED = "killed"
    OTHER = "other"


# The first match wins: "could not read from remote repository" follows every other message of a remote.
# The remote's own messages begin with "remote:".
_SAID: tuple[tuple[GitProblem, str], ...] = (
    # A problem of the sandbox says nothing about the repository.
    (GitProblem.OTHER, r"\A(bwrap|prlimit|/sys/fs/cgroup/\S+): "),
    # git says so of a process of its own, such as the one that talks to the server.
    (GitProblem.KILLED, r"^(?!remote:).*(\bdied of signal 9\b|full write to remote helper failed)"),
    (GitProblem.DISK_FULL, r"^(?!remote:).*(no space left on device|disk quota exceeded)"),
    (GitProblem.CORRUPT, r"unable to resolve reference .*: reference broken"),
    (GitProblem.LOCKED, r"\.lock': File exists|unable to lock|cannot lock ref"),
    (GitProblem.AUTH, r"authentication failed|requested url returned error: 40[13]|permission to .* denied"),
    # The credential helper ended before it answered: `authorise` refuses before git runs where there is no token.
    (GitProblem.KILLED, r"could not read (username|password)|terminal prompts disabled"),
    (
        GitProblem.NETWORK,
        r"could not resolve (host|proxy)|failed to connect|couldn't connect|connection (timed out|refused|reset)"
        r"|operation (timed out|too slow)|early eof|empty reply from server|hung up|rpc failed"
        r"|(requested url returned error:|from http) (429|5\d\d)|gnutls|ssl_|transfer closed"
        r"|certificate verification failed|ssl certificate problem|from proxy after connect|tunnel failed"
        # Our credential helper cannot get a token now.
        r"|credential helper '.*' told us to quit",
    ),
    (GitProblem.REJECTED, r"\[(remote )?rejected\]"),
    (
        GitProblem.CORRUPT,
        r"^(?!remote:).*(object .* is corrupt|bad (object|tree object|config|boolean config|numeric config)"
        r"|(unable to|could not|failed to) (read|parse|unpack) (tree|sha1|object|commit|[0-9a-f]{40})"
        r"|missing (blob|tree|commit|object)|failed to traverse parents|did not send all necessary objects"
        r"|data stream error|does not match index|object file .* is empty|unexpected line in .*packed-refs"
        r"|index file (corrupt|smaller than expected))",
    ),
    (
        GitProblem.NOT_FOUND,
        r"not a git repository|can only be used inside a git repository"
        r"|does not appear to be a git repository|repository .*not found|not our ref"
        r"|couldn't find remote ref|unknown revision|not a valid (ref|object)|requested url returned error: 404"
        r"|no such file or directory|needed a single revision",
    ),
)
_PROBLEMS = tuple((kind, re.compile(pattern, re.I | re.M)) for kind, pattern in _SAID)
_REFUSED = re.compile(
    r"authentication failed for|returned error: 40[134]|^(remote: |fatal: )repository .*not found"
    r"|^fatal: '.*' does not appear to be a git repository",
    re.I | re.M,
)
_SECRETS = re.compile(
    r"(?P<scheme>://)[^/@\s]+@|(?P<header>authorization: *)[^\r\n]+|gh[pousr]_\w+|github_pat_\w+", re.I
)


class GitError(Exception):
    """A git command that failed. Its text holds no credential and no environment."""

    def __init__(self, problem: GitProblem, command: str, stderr: str) -> None:
        super().__init__(f"git {command}: {stderr.strip() or problem.value}")
        self.problem = problem
        self.command = command
        self.stderr = stderr

    @property
    def is_unauthenticated(self) -> bool:
        """Whether the server refused the credentials (401). A 403 is a lack of permission."""
        return is_unauthenticated(self.stderr)

    @property
    def talked_to_server(self) -> bool:
        """Whether the command that failed was one that talks to the server."""
        return self.command in TALKS_TO_SERVER


def problem_of(stderr: str) -> GitProblem:
    """Return the kind of failure that git's stderr reports."""
    return next((kind for kind, pattern in _PROBLEMS if pattern.search(stderr)), GitProblem.OTHER)


def is_unauthenticated(stderr: str) -> bool:
    """Return whether the server refused the credentials (401), which says nothing about the repository."""
    return "authentication failed for" in stderr.lower()


def is_refused(stderr: str) -> bool:
    """Return whether the server refused the credentials, or does not show them the repository (401, 403, 404)."""
    return _REFUSED.search(stderr) is not None


def redact(text: str) -> str:
    """Return `text` without credentials in URLs, authorization headers, and GitHub tokens."""
    return _SECRETS.sub(lambda m: f"{m['scheme']}***@" if m["scheme"] else f"{m['header'] or ''}***", text)
