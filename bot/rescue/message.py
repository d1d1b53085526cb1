"""The message of a rescue commit: a person can understand it, and the rows of rescues can be rebuilt from it. Pure."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from bot.git import refs

_TRAILER = re.compile(r"(Threadtree-[A-Z][a-z-]*[a-z]): (.*)", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,18}")


@dataclass(frozen=True, slots=True)
class RescueLabel:
    """Whose work a rescue commit holds, and from when. It is in the message, so no database is needed to read it."""

    worktree_id: int
    branch: str | None
    conversations: tuple[int, ...]
    at: datetime


@dataclass(frozen=True, slots=True)
class RescuedCommits:
    """The contents of a rescue commit besides its tree. The commits named here are among its parents.

    `staged` is the index where that differed from `head`; `tip` the branch's where `head` was not on it; `stashes` are
    the newest first; `others` were reached by nothing else. `files` were uncommitted, `commits` unpublished.
    """

    head: str | None = None
    staged: str | None = None
    tip: str | None = None
    stashes: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    operation: str | None = None
    files: int = 0
    commits: int = 0

    @property
    def parents(self) -> tuple[str, ...]:
        """All commits, each once."""
        known = (self.head, self.staged, self.tip, *self.stashes, *self.others)
        return tuple(dict.fromkeys(commit for commit in known if commit is not None))


def write(label: RescueLabel, kept: RescuedCommits) -> bytes:
    """Return the message of a rescue commit, as bytes: branch names need not be UTF-8."""
    place = f"on {label.branch}" if label.branch else "without a branch"
    threads = ", ".join(f"#{number}" for number in label.conversations) or "no thread"
    trailers = [
        ("Worktree", str(label.worktree_id)),
        ("Branch", label.branch),
        ("Conversations", " ".join(map(str, label.conversations)) or None),
        ("Time", label.at.astimezone(UTC).isoformat()),
        ("Operation", kept.operation),
        ("Files", str(kept.files)),
        ("Commits", str(kept.commits)),
        ("Head", kept.head),
        ("Staged", kept.staged),
        ("Tip", kept.tip),
        *(("Stash", stash) for stash in kept.stashes),
        *(("Other", other) for other in kept.others),
    ]
    lines = [
        f"Rescue of worktree {label.worktree_id} {place}",
        "",
        f"Kept before the worktree of {threads} was removed or reset. The files are those that lay",
        "there, byte for byte, without the ignored ones. The parents named below are the commit checked out",
        "(Head), what was staged (Staged), the branch (Tip), stashes, and commits that nothing else reached.",
        f"`threadtree worktrees restore {label.worktree_id}` brings the latest rescue back.",
        "",
        *(f"Threadtree-{key}: {value}" for key, value in trailers if value is not None),
    ]
    return os.fsencode("\n".join(lines) + "\n")


def read(message: str, parents: Sequence[str]) -> tuple[RescueLabel, RescuedCommits] | None:
    """Parse what `write` wrote; None for any other message. A commit that is not one of the `parents` is ignored."""
    found: dict[str, list[str]] = {}
    for key, value in _TRAILER.findall(message):
        found.setdefault(key.removeprefix("Threadtree-"), []).append(value)
    try:
        label = _label(found)
    except (KeyError, ValueError):
        return None

    def commits(key: str) -> tuple[str, ...]:
        return tuple(value for value in found.get(key, ()) if value in parents)

    def commit(key: str) -> str | None:
        return next(iter(commits(key)), None)

    return label, RescuedCommits(
        commit("Head"),
        commit("Staged"),
        commit("Tip"),
        commits("Stash"),
        commits("Other"),
        found.get("Operation", [None])[0],
        _number(found, "Files"),
        _number(found, "Commits"),
    )


def _label(found: Mapping[str, Sequence[str]]) -> RescueLabel:
    branch = found.get("Branch", [None])[0]
    if branch is not None and not refs.is_branch(branch):
        raise ValueError(f"not a branch name: {branch!r}")
    conversations = found.get("Conversations", [""])[0].split()
    at = datetime.fromisoformat(found["Time"][0])
    if at.tzinfo is None:
        raise ValueError("a time without a zone")
    return RescueLabel(int(found["Worktree"][0]), branch, tuple(map(int, conversations)), at)


def _number(found: Mapping[str, Sequence[str]], key: str) -> int:
    value = found.get(key, ["0"])[0]
    return int(value) if _NUMBER.fullmatch(value) else 0


def place_of(ref: str) -> tuple[str, datetime] | None:
    """Return the worktree and the time that a rescue's ref names; None for another ref."""
    worktree, _, time = ref.removeprefix(refs.RESCUE_PREFIX).partition("/")
    try:
        at = datetime.strptime(time, "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
    except ValueError:
        return None
    return (worktree, at) if refs.rescue_ref(worktree, at) == ref else None
