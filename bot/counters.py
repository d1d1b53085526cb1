"""Counters that no table can provide. Each process adds its own to rows that all share, every few seconds."""

from typing import Final, TypeAlias

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric

REGISTRY: Final = CollectorRegistry()


def _counter(name: str, help_text: str, *labels: str) -> Counter:
    return Counter(f"threadtree_{name}", help_text, labels, registry=REGISTRY)


DELIVERIES_RECEIVED: Final = _counter(
    "deliveries_received", "Deliveries by event and what was answered", "event", "answer"
)
DELIVERIES_REFUSED: Final = _counter(
    "deliveries_refused", "Requests to the webhook that were refused, by status", "status"
)
ACKNOWLEDGED_AFTER: Final = Histogram(
    "threadtree_acknowledgement_seconds",
    "How long a stored delivery waited for its 202",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    registry=REGISTRY,
)
GITHUB_REQUESTS: Final = _counter("github_requests", "Requests to GitHub by status", "status")
GITHUB_RATE_REMAINING: Final = Gauge(
    "threadtree_github_rate_remaining", "Requests left by GitHub's last answer", ["resource"], registry=REGISTRY
)
GITHUB_TOKEN_EXPIRES: Final = Gauge(
    "threadtree_github_token_expires_timestamp_seconds", "When the token expires, +Inf if never", registry=REGISTRY
)
LAST_DELIVERY: Final = Gauge(
    "threadtree_last_delivery_timestamp_seconds", "When the last signed delivery came", registry=REGISTRY
)
LOG_REQUESTS: Final = _counter("log_requests", "Requests for GitHub's log of deliveries", "answer")
DISK_FREE_BYTES: Final = Gauge(
    "threadtree_disk_free_bytes", "Bytes free where DATA_DIR is", ["node"], registry=REGISTRY
)
SWEEPS: Final = _counter("sweeps", "Rounds of housekeeping by their end", "end")
WORKTREES_PRUNED: Final = _counter("worktrees_pruned", "Worktrees that housekeeping removed", "node")
RECLAIMED_BYTES: Final = _counter("reclaimed_bytes", "Bytes that housekeeping freed", "node")
RECOVERIES: Final = _counter("recoveries", "Work of dead processes that was taken up again", "what")
NOTIFICATIONS: Final = _counter("notifications", "Messages to NOTIFY_URL by their end", "end")
COST_NOT_COUNTED: Final = _counter(
    "cost_not_counted_usd", "US dollars that agents told beyond the limit of their turns, which count to no sum"
)
LOST_CLAIMS: Final = _counter("lost_claims", "Runs that found that another one had replaced them", "what")

# There from the beginning, as 0: Prometheus sees no change from nothing to one.
for _text in ("401", "503"):
    DELIVERIES_REFUSED.labels(_text)
for _text in ("turn", "delivery", "missed-delivery", "write", "job"):
    RECOVERIES.labels(_text)
for _text in ("unchanged", "counted"):
    LOG_REQUESTS.labels(_text)
for _text in ("done", "failed"):
    SWEEPS.labels(_text)
GITHUB_REQUESTS.labels("401")

Key: TypeAlias = tuple[str, str]
"""The name of a sample, and its labels as JSON."""
_taken: Final[dict[Key, float]] = {}


def samples_of(family: Metric) -> dict[Key, float]:
    """Return the samples of a family in this process."""
    return {
        (sample.name, orjson.dumps(sample.labels).decode()): sample.value
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def take() -> tuple[dict[Key, float], dict[Key, float]]:
    """Return what is to be added to the rows since the last call, and the latest value of what goes up and down."""
    added, latest = dict[Key, float](), dict[Key, float]()
    for family in REGISTRY.collect():
        for key, value in samples_of(family).items():
            if value == _taken.get(key, 0):
                continue
            if family.type == "gauge":
                latest[key] = value
            else:
                added[key] = value - _taken.get(key, 0)
            _taken[key] = value
    return added, latest


def give_back(added: dict[Key, float], latest: dict[Key, float]) -> None:
    """Have what could not be written taken again, with what is counted meanwhile."""
    for key, value in added.items():
        _taken[key] -= value
    for key in latest:
        del _taken[key]
