"""What git's words on stderr mean for the caller, and those words without credentials. Pure."""

import re
from enum import StrEnum


class GitProblem(StrEnum):
    """What kind of failure git reported, as far as the caller can act on it."""

    NOT_FOUND = "not found"
    AUTH = "auth"
    NETWORK = "network"
    REJECTED = "rejected"
    LOCKED = "locked"
    CORRUPT = "corrupt"
    TIMEOUT = "timeout"
    OTHER = "other"


# First that matches wins: "could not read from remote repository" follows every other message of a remote.
_PROBLEMS: tuple[tuple[GitProblem, re.Pattern[str]], ...] = (
    # The cage's own troubles say nothing about the repository.
    (GitProblem.OTHER, re.compile(r"\A(bwrap|prlimit|/sys/fs/cgroup/\S+): ")),
    (GitProblem.CORRUPT, re.compile(r"unable to resolve reference .*: reference broken", re.I)),
    (GitProblem.LOCKED, re.compile(r"\.lock': File exists|unable to lock|cannot lock ref", re.I)),
    (
        GitProblem.AUTH,
        re.compile(
            r"authentication failed|could not read (username|password)|terminal prompts disabled"
            r"|requested url returned error: 40[13]|permission to .* denied",
            re.I,
        ),
    ),
    (
        GitProblem.NETWORK,
        re.compile(
            r"could not resolve host|failed to connect|couldn't connect|connection (timed out|refused|reset)"
            r"|operation (timed out|too slow)|early eof|hung up|rpc failed|requested url returned error: (429|5\d\d)"
            r"|gnutls|ssl_|transfer closed",
            re.I,
        ),
    ),
    (GitProblem.REJECTED, re.compile(r"\[(remote )?rejected\]", re.I)),
    (
        GitProblem.CORRUPT,
        # What the remote says of its own objects stands behind "remote:".
        re.compile(
            r"^(?!remote:).*(object .* is corrupt|bad (object|tree object|config|boolean config|numeric config)"
            r"|(unable to|could not|failed to) (read|parse|unpack) (tree|sha1|object|commit|[0-9a-f]{40})"
            r"|missing (blob|tree|commit|object)|failed to traverse parents|did not send all necessary objects"
            r"|data stream error|does not match index|object file .* is empty|unexpected line in .*packed-refs"
            r"|index file (corrupt|smaller than expected))",
            re.I | re.M,
        ),
    ),
    (
        GitProblem.NOT_FOUND,
        re.compile(
            r"not a git repository|does not appear to be a git repository|repository .*not found|not our ref"
            r"|couldn't find remote ref|unknown revision|not a valid (ref|object)|requested url returned error: 404"
            r"|no such file or directory|needed a single revision",
            re.I,
        ),
    ),
)
_SECRETS = re.compile(
    r"(?P<scheme>://)[^/@\s]+@|(?P<header>authorization: *)[^\r\n]+|gh[pousr]_\w+|github_pat_\w+", re.I
)


def problem_of(stderr: str) -> GitProblem:
    """The kind of failure that git's words stand for."""
    return next((kind for kind, pattern in _PROBLEMS if pattern.search(stderr)), GitProblem.OTHER)


def redact(text: str) -> str:
    """`text` without credentials in URLs, authorization headers, or GitHub tokens."""
    return _SECRETS.sub(lambda m: f"{m['scheme']}***@" if m["scheme"] else f"{m['header'] or ''}***", text)
