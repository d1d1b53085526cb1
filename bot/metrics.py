"""`GET /metrics`: the bot's figures for Prometheus. They are in rows, so that each process tells the same ones."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from asyncpg import Record
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bot.counters import ACKNOWLEDGED_WITHIN
from bot.store import measures
from bot.store.database import DATABASE_AWAY, Pool
from bot.store.measures import TURN_TOOK_AT_MOST, Measures

if TYPE_CHECKING:  # imported by the first scrape: not every bot is scraped
    from prometheus_client.metrics_core import Metric

KEPT_SECONDS: Final = 5.0
"""Anybody may ask: the rows are counted once in this time."""
ANSWER_SECONDS: Final = 10.0
_UNANSWERED: tuple[type[BaseException], ...] = (TimeoutError, *DATABASE_AWAY)


def metrics_route(pool: Pool) -> Route:
    """Return the route; without an answer of the database in time it is 503."""
    lock = asyncio.Lock()
    known: tuple[float, bytes] | None = None

    async def metrics(_: Request) -> Response:
        nonlocal known
        try:
            async with asyncio.timeout(ANSWER_SECONDS), lock:
                if known is None or time.monotonic() - known[0] > KEPT_SECONDS:
                    async with pool.acquire() as connection:
                        text = _text(await measures.read(connection))
                    known = time.monotonic(), text
        except _UNANSWERED:
            return Response("The database does not answer in time.\n", 503, media_type="text/plain")
        # https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
        return Response(known[1], media_type="text/plain; version=0.0.4")

    return Route("/metrics", metrics, methods=["GET"])


def _text(figures: Measures) -> bytes:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Figures(Collector):
        def collect(self) -> Iterator["Metric"]:
            yield from _families(figures)

    registry = CollectorRegistry()
    registry.register(Figures())
    return generate_latest(registry)


def _families(figures: Measures) -> Iterator["Metric"]:
    from prometheus_client.metrics_core import HistogramMetricFamily

    counted = figures.counters
    yield _gauge("info", "The version that runs", ("version",), [((version("threadtree"),), 1)])
    yield _counter(
        "deliveries_received",
        "Deliveries by event and what was answered",
        ("event", "answer"),
        [(_pair(label), value) for label, value in counted.get("deliveries_received_total", {}).items()],
    )
    refused = ("401", "503")
    yield _counted(
        counted, "deliveries_refused", "Requests to the webhook that were refused, by status", "status", refused
    )
    found = counted.get("acknowledgement_seconds", {})
    yield HistogramMetricFamily(
        "threadtree_acknowledgement_seconds",
        "How long a stored delivery waited for its 202",
        buckets=_cumulative((str(end), found.get(str(end), 0)) for end in (*ACKNOWLEDGED_WITHIN, "+Inf")),
        sum_value=counted.get("acknowledgement_seconds_sum", {}).get("", 0),
    )
    went_wrong = ("received", "failed", "dead")
    yield _states("deliveries", "Deliveries that wait or went wrong", figures.deliveries, "deliveries", went_wrong)
    yield _rows("deliveries_oldest_seconds", "Age of the oldest one", figures.deliveries, ("state",), "oldest_seconds")
    unfinished = ("running", "queued", "waiting")
    yield _states("turns", "Turns that run, are queued, or wait until a time", figures.turns_now, "turns", unfinished)
    yield _rows("turns_oldest_seconds", "Age of the oldest one", figures.turns_now, ("state",), "oldest_seconds")
    ended = figures.turns_ended
    by_end = ("state", "agent")
    yield _rows("turns_ended", "Turns by their end", ended, by_end, "turns", count=True)
    yield _rows("cost_usd", "Cost of turns in US dollars, where it is told", ended, by_end, "cost_usd", count=True)
    yield _rows("tokens", "Tokens of turns, where they are told", ended, by_end, "tokens", count=True)
    places = {int(row["place"]): row for row in figures.turn_seconds}
    ends = [*map(str, TURN_TOOK_AT_MOST), "+Inf"]
    yield HistogramMetricFamily(
        "threadtree_turn_seconds",
        "How long turns took from their start",
        buckets=_cumulative((end, places[n]["turns"] if n in places else 0) for n, end in enumerate(ends)),
        sum_value=sum(row["seconds"] for row in figures.turn_seconds),
    )
    yield _rows("operations", "Operations on worktrees", figures.operations, ("kind", "state"), "operations")
    not_sent = ("waiting", "sending", "failed")
    yield _states("outbox", "Writes to GitHub that wait, are sent or failed", figures.outbox, "writes", not_sent)
    yield _rows("outbox_oldest_seconds", "How long the oldest one is due", figures.outbox, ("state",), "oldest_seconds")
    yield _rows("writers_held", "Writers that GitHub's limit holds back", figures.writers, (), "held")
    yield _rows("writers_held_seconds", "How long the last of them waits", figures.writers, (), "seconds")
    yield _counted(counted, "github_requests", "Requests to GitHub by status", "status", ("401",))
    yield _counted(counted, "github_rate_remaining", "Requests left by GitHub's last answer", "resource", gauge=True)
    yield _rows("worktrees", "Worktrees by node and state", figures.worktrees, ("node", "state"), "worktrees")
    yield _rows("bytes", "Bytes on the disk", figures.bytes, ("kind",), "bytes")
    yield _rows("disk_bytes", "Bytes in DATA_DIR at the last sweep", figures.disk, ("kind", "node"), "bytes")
    yield _counted(counted, "disk_free_bytes", "Bytes free where DATA_DIR is", "node", gauge=True)
    yield _rows("node_silent_seconds", "Age of a node's last heartbeat", figures.nodes, ("node",), "seconds")
    yield _rows("jobs", "Jobs of the engine", figures.jobs, ("queue", "status"), "jobs")
    yield _counted(counted, "sweeps", "Rounds of housekeeping by their end", "end", ("done", "failed"))
    yield _counted(counted, "worktrees_pruned", "Worktrees that housekeeping removed", "node")
    yield _counted(counted, "reclaimed_bytes", "Bytes that housekeeping freed", "node")
    taken_up = ("turn", "operation", "delivery", "missed-delivery", "write", "job")
    yield _counted(counted, "recoveries", "Work of dead processes that was taken up again", "what", taken_up)
    yield _counted(counted, "lost_claims", "Runs that found that another one had replaced them", "what")


def _pair(label: str) -> tuple[str, str]:
    event, _, answer = label.partition(" ")
    return event, answer


def _cumulative(buckets: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return the buckets as Prometheus has them: each holds those before it."""
    total, result = 0.0, []
    for end, value in buckets:
        total += value
        result.append((end, total))
    return result


Samples = Iterable[tuple[Sequence[str], float]]


def _gauge(name: str, help_text: str, labels: Sequence[str], samples: Samples) -> "Metric":
    from prometheus_client.metrics_core import GaugeMetricFamily

    family = GaugeMetricFamily(f"threadtree_{name}", help_text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _counter(name: str, help_text: str, labels: Sequence[str], samples: Samples) -> "Metric":
    from prometheus_client.metrics_core import CounterMetricFamily

    family = CounterMetricFamily(f"threadtree_{name}", help_text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _rows(
    name: str, help_text: str, rows: Sequence[Record], labels: Sequence[str], value: str, *, count: bool = False
) -> "Metric":
    samples = [([str(row[label]) for label in labels], row[value]) for row in rows]
    return (_counter if count else _gauge)(name, help_text, labels, samples)


def _states(name: str, help_text: str, rows: Sequence[Record], value: str, states: Sequence[str]) -> "Metric":
    """Return the rows of each state, also of those without any: Prometheus sees no change from nothing to one."""
    found = dict.fromkeys(states, 0.0) | {row["state"]: row[value] for row in rows}
    return _gauge(name, help_text, ("state",), [((state,), number) for state, number in found.items()])


def _counted(
    counted: Mapping[str, Mapping[str, float]],
    name: str,
    help_text: str,
    label: str,
    always: Sequence[str] = (),
    *,
    gauge: bool = False,
) -> "Metric":
    """Return a count by its label, also where nothing was counted for a label in `always`; as in `_states`."""
    found = dict.fromkeys(always, 0.0) | dict(counted.get(name if gauge else f"{name}_total", {}))
    return (_gauge if gauge else _counter)(
        name, help_text, (label,), [((text,), value) for text, value in found.items()]
    )
