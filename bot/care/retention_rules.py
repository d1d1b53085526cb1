"""Which worktrees have been without activity for too long. Pure (DESIGN.md §4, retention)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from bot.model import DetachedHead, Start
from bot.thread.formatting import format_count

SAFETY_LIMIT = 10
MetadataState = Literal["ok", "missing", "corrupt"]


class Kind(StrEnum):
    """The kind of a worktree, for its retention: at a commit, on a branch, or used by no conversation."""

    DETACHED = "detached"
    BRANCH = "branch"
    ORPHAN = "orphan"


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Retention of each kind without activity, and of rescues, at the aware time `now`."""

    now: datetime
    kept_for: Mapping[Kind, timedelta]
    rescue: timedelta

    def expired_before(self, kind: Kind) -> datetime:
        """Return the time of the last activity before which a worktree is due."""
        return self.now - self.kept_for[kind]


Policies = Callable[[datetime, timedelta | None], RetentionPolicy]
"""How long things are kept, at a time; an age replaces what the settings say of worktrees."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a worktree. Times are aware, None if unknown.

    `metadata` is the state of the file beside it; it does not count if the directory is gone. `locked` is the reason
    that a person gave to `git worktree lock`, not the bot's own.
    """

    kind: Kind
    row_at: datetime
    directory: bool = True
    metadata: MetadataState = "ok"
    metadata_at: datetime | None = None
    changed_at: datetime | None = None
    busy: bool = False
    locked: str | None = None


def kind_of(start: Start, conversations: Sequence[int]) -> Kind:
    """Return the kind of a worktree, by what its row says."""
    if not conversations:
        return Kind.ORPHAN
    return Kind.DETACHED if isinstance(start, DetachedHead) else Kind.BRANCH


def reason_to_keep(facts: Facts, policy: RetentionPolicy) -> str | None:
    """Return why a worktree stays, as one sentence; None if it is due.

    Activity is the newest of row, metadata and files; the future counts as now.
    """
    if facts.busy:
        return "A turn is waiting or running."
    if facts.locked is not None:
        return f"It was locked by hand: {facts.locked or 'no reason given'}."
    times = (facts.row_at, facts.metadata_at, facts.changed_at)
    active = min(max(time for time in times if time is not None), policy.now)
    idle = policy.now - active
    kept_for = policy.kept_for[facts.kind]
    if idle < kept_for:
        return f"Last activity {describe(idle)} ago; {_KINDS[facts.kind]} is kept for {describe(kept_for)}."
    if facts.directory and facts.metadata != "ok":
        return f"Its metadata is {facts.metadata}: rebuilt, and checked again next time."
    return None


def exceeds_safety_limit(due: int, total: int) -> bool:
    """Return whether this many due at once suggest a wrong clock: more than ten and more than half of all."""
    return due > SAFETY_LIMIT and 2 * due > total


def describe(age: timedelta) -> str:
    """Return an age for people, in its largest unit."""
    seconds = int(age.total_seconds())
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return format_count(seconds, "second")


_KINDS = {
    Kind.DETACHED: "one without a branch",
    Kind.BRANCH: "one on a branch",
    Kind.ORPHAN: "one that no conversation uses",
}
