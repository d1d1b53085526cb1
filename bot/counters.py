"""What a process counts and no row tells. Each process adds its counts to rows that all share, every few seconds."""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final, Literal

Name = Literal[
    "deliveries_received_total",
    "deliveries_refused_total",
    "acknowledgement_seconds",
    "acknowledgement_seconds_sum",
    "github_requests_total",
    "github_rate_remaining",
    "recoveries_total",
    "lost_claims_total",
    "sweeps_total",
    "worktrees_pruned_total",
    "reclaimed_bytes_total",
    "disk_free_bytes",
]
EVENTS: Final = frozenset(
    {
        *("issue_comment", "pull_request_review_comment", "pull_request_review", "issues", "pull_request"),
        *("ping", "installation", "installation_repositories"),
    }
)
"""Those that have a count of their own: the header that names the event is not signed."""
ACKNOWLEDGED_WITHIN: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper ends of the histogram's buckets, in seconds."""


@dataclass(slots=True)
class Counts:
    """Counts by name and label that are not in rows yet, and the latest value of what goes up and down."""

    added: dict[tuple[str, str], float] = field(default_factory=dict)
    latest: dict[tuple[str, str], float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.added or self.latest)


_unsaved = Counts()


def count(name: Name, label: str = "", by: float = 1) -> None:
    """Add to a count of this process."""
    _unsaved.added[name, label] = _unsaved.added.get((name, label), 0) + by


def note(name: Name, label: str, value: float) -> None:
    """Set the latest value."""
    _unsaved.latest[name, label] = value


def acknowledged(seconds: float) -> None:
    """Count the acknowledgement of a delivery that took so long."""
    place = bisect_left(ACKNOWLEDGED_WITHIN, seconds)
    count("acknowledgement_seconds", str(ACKNOWLEDGED_WITHIN[place]) if place < len(ACKNOWLEDGED_WITHIN) else "+Inf")
    count("acknowledgement_seconds_sum", by=seconds)


def take() -> Counts:
    """Return what is not in rows yet, and begin again."""
    global _unsaved
    taken, _unsaved = _unsaved, Counts()
    return taken


def give_back(taken: Counts) -> None:
    """Count what could not be written with what was counted meanwhile."""
    for key, value in taken.added.items():
        _unsaved.added[key] = _unsaved.added.get(key, 0) + value
    for key, value in taken.latest.items():
        _unsaved.latest.setdefault(key, value)
