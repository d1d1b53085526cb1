"""An issue or a pull request as GitHub describes it. Plain values."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from bot.model import Actor


@dataclass(frozen=True, slots=True)
class Text:
    """A description or a comment, as written. `edited_at` is None for a text that was never edited.

    `id` is the number in web addresses, `node_id` the id in GraphQL. `is_hidden`: people have minimised it.
    """

    author: Actor
    body: str
    created_at: datetime
    edited_at: datetime | None = None
    id: int | None = None
    node_id: str | None = None
    is_hidden: bool = False


@dataclass(frozen=True, slots=True)
class ReviewThread:
    """A thread of inline comments, oldest comment first, with the lines it is about.

    `is_outdated`: these lines were changed since. `id` is that of GraphQL.
    """

    path: str
    line: int | None
    diff_hunk: str
    comments: tuple[Text, ...]
    id: str = ""
    is_resolved: bool = False
    is_outdated: bool = False


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file that the pull request changes. `patch` is None where GitHub shows none (binary or too large)."""

    path: str
    status: str
    additions: int
    deletions: int
    patch: str | None


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of the pull request."""

    sha: str
    subject: str
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class Checks:
    """The checks and statuses of a commit: whether some run, which failed so far, and whether all others ended well.

    `is_part`: some could not be read.
    """

    running: bool = False
    failed: frozenset[str] = frozenset()
    green: bool = False
    is_part: bool = False


@dataclass(frozen=True, slots=True)
class FailedCheck:
    """A check of a commit that failed. `log` is the end of its log, empty where the token may not read it."""

    name: str
    summary: str
    log: str


@dataclass(frozen=True, slots=True)
class LinkedThread:
    """Another thread that this one names as related: the issue a pull request closes, or a pull request of an issue.

    The description of a pull request is not told.
    """

    kind: Literal["issue", "pull"]
    number: int
    title: str
    state: str
    description: Text


@dataclass(frozen=True, slots=True)
class PullRequest:
    """What only a pull request has, as of a request. `pushed_since`: the branch has a newer head by now."""

    base: str
    head: str
    head_sha: str
    pushed_since: bool = False
    commits: tuple[Commit, ...] = ()
    files: tuple[ChangedFile, ...] = ()
    review_threads: tuple[ReviewThread, ...] = ()


@dataclass(slots=True)
class Gaps:
    """The parts of a thread that could not be read, in words. Another try may find what is `missing`, and nothing of
    what is `cut`: it is beyond a limit, or not shown to the bot.
    """

    missing: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)

    def some(self, number: int, of: int, words: str, *, may_pass: bool = False) -> None:
        """Note so many of the items of a list, none for 0."""
        if number > 0:
            (self.missing if may_pass else self.cut).append(f"{number} of the {of} {words}")


@dataclass(frozen=True, slots=True)
class WholeThread:
    """An issue, or with `pull` a pull request. `missing` and `cut` name what could not be read, as in `Gaps`.

    `linked`: the pull requests that close the issue, or the issues that the pull request closes. `failed_checks` are of
    the pull request's head, or of the commit that the request is about.
    """

    title: str
    is_public: bool
    description: Text
    labels: tuple[str, ...] = ()
    milestone: str | None = None
    linked: tuple[LinkedThread, ...] = ()
    comments: tuple[Text, ...] = ()
    pull: PullRequest | None = None
    failed_checks: tuple[FailedCheck, ...] = ()
    missing: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
