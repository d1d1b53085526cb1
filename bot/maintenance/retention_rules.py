"""Which worktrees have been without activity for too long. Pure (DESIGN.md §4, retention)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from bot.maintenance.reconcile_rules import MetadataState
from bot.model import DetachedHead, Start

SAFETY_LIMIT = 10
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE = re.compile(r"([0-9]{1,6})([smhdw])")


class Kind(StrEnum):
    """The kind of a worktree, for its retention: at a commit, on a branch, or used by no conversation."""

    DETACHED = "detached"
    BRANCH = "branch"
    ORPHAN = "orphan"


@dataclass(frozen=True, slots=True)
class Policy:
    """Retention of each kind without activity, and of rescues, at the aware time `now`."""

    now: datetime
    kept_for: Mapping[Kind, timedelta]
    rescue: timedelta

    def expired_before(self, kind: Kind) -> datetime:
        """Return the time of the last activity before which a worktree is due."""
        return self.now - self.kept_for[kind]


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


def policy_for(
    now: datetime,
    *,
    detached_days: int,
    branch_days: int,
    orphan_days: int,
    rescue_days: int,
    older_than: timedelta | None = None,
) -> Policy:
    """Return the policy of these expiries in days; `older_than` replaces the three of worktrees."""
    days = {Kind.DETACHED: detached_days, Kind.BRANCH: branch_days, Kind.ORPHAN: orphan_days}
    kept_for = {kind: timedelta(days=number) if older_than is None else older_than for kind, number in days.items()}
    return Policy(now, kept_for, timedelta(days=rescue_days))


def parse_age(text: str) -> timedelta:
    """Parse `90s`, `30m`, `24h`, `7d` or `2w`. Raises ValueError with a sentence for the operator."""
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"--older-than {text!r} is not an age; write a number and s, m, h, d or w, such as 24h or 7d.")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def kind_of(start: Start, conversations: Sequence[int]) -> Kind:
    """Return the kind of a worktree, by what its row says."""
    if not conversations:
        return Kind.ORPHAN
    return Kind.DETACHED if isinstance(start, DetachedHead) else Kind.BRANCH


def reason_to_keep(facts: Facts, policy: Policy) -> str | None:
    """Return why a worktree stays, as one sentence; None if it is due.

    Activity is the newest of row, metadata and files; the future counts as now.
    """
    if facts.busy:
        return "A turn or an operation is waiting or running."
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
    return f"{seconds} seconds"


_KINDS = {
    Kind.DETACHED: "one without a branch",
    Kind.BRANCH: "one on a branch",
    Kind.ORPHAN: "one that no conversation uses",
}
