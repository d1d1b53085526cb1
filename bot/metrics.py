"""`GET /metrics`: the bot's figures for Prometheus. They are in rows, so that each process tells the same ones."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Final, TypeAlias

import orjson
from asyncpg import Record
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bot import counters
from bot.store import measures
from bot.store.database import DATABASE_AWAY, Pool
from bot.store.measures import TURN_TOOK_AT_MOST, Measures

KEPT_SECONDS: Final = 5.0
"""Anybody may ask: the rows are counted once in this time."""
ANSWER_SECONDS: Final = 10.0
HELP: Final = {
    "deliveries": "Deliveries that wait or went wrong",
    "deliveries_oldest_seconds": "Age of the oldest one",
    "turns": "Turns that run, are queued, or wait until a time",
    "turns_oldest_seconds": "Age of the oldest one",
    "turns_ended": "Turns by their end",
    "cost_usd": "Cost of turns in US dollars, as reported by the agent",
    "tokens": "Tokens of turns, as reported by the agent",
    "operations": "Operations on worktrees",
    "outbox": "Writes to GitHub that wait, are sent or failed",
    "outbox_oldest_seconds": "How long the oldest one is due",
    "writers_held": "Writers that GitHub's limit holds back",
    "writers_held_seconds": "How long the last of them waits",
    "worktrees": "Worktrees by node and state",
    "bytes": "Bytes on the disk",
    "disk_bytes": "Bytes in DATA_DIR at the last sweep",
    "node_silent_seconds": "Age of a node's last heartbeat",
    "jobs": "Jobs of the engine",
}
"""The figures that are read from rows."""
ONLY_GROW: Final = frozenset({"turns_ended", "cost_usd", "tokens"})
ALWAYS: Final = {
    "deliveries": ("received", "failed", "dead"),
    "turns": ("running", "queued", "waiting"),
    "outbox": ("waiting", "sending", "failed"),
}
"""The states of a figure that are there from the beginning, as 0: Prometheus sees no change from nothing to one."""
_Sample: TypeAlias = tuple[dict[str, str], float]
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


def _text(measured: Measures) -> bytes:
    class Figures(Collector):
        def collect(self) -> Iterator[Metric]:
            yield _family("info", "gauge", "The version that runs", [({"version": version("threadtree")}, 1)])
            yield from _counted(measured.counted)
            yield from _in_rows(measured.in_rows)
            yield _turn_seconds(measured.turn_seconds)

    registry = CollectorRegistry()
    registry.register(Figures())
    return generate_latest(registry)


def _counted(rows: Sequence[Record]) -> Iterator[Metric]:
    """Yield what the processes counted. A counter that is not in a row yet is there as 0."""
    values = {(row["name"], row["label"]): row["value"] for row in rows}
    for family in counters.REGISTRY.collect():
        names = {f"{family.name}{suffix}" for suffix in ("", "_total", "_bucket", "_count", "_sum")}
        at_first = {} if family.type == "gauge" else dict.fromkeys(counters.samples_of(family), 0.0)
        family.samples = []
        for key, value in (at_first | {key: value for key, value in values.items() if key[0] in names}).items():
            family.add_sample(key[0], orjson.loads(key[1]), value)
        yield family


def _in_rows(rows: Sequence[Record]) -> Iterator[Metric]:
    samples: dict[str, list[_Sample]] = {name: [] for name in HELP}
    for row in rows:
        labels = {name: value for name, value in row.items() if isinstance(value, str)}
        for name in row.keys() - labels.keys():
            samples[name].append((labels, row[name]))
    for name, states in ALWAYS.items():
        known = {labels["state"] for labels, _ in samples[name]}
        samples[name] += [({"state": state}, 0) for state in states if state not in known]
    for name, found in samples.items():
        yield _family(name, "counter" if name in ONLY_GROW else "gauge", HELP[name], found)


def _family(name: str, kind: str, help_text: str, samples: Iterable[_Sample]) -> Metric:
    family = Metric(f"threadtree_{name}", help_text, kind)
    for labels, value in samples:
        family.add_sample(f"{family.name}_total" if kind == "counter" else family.name, labels, value)
    return family


def _turn_seconds(rows: Sequence[Record]) -> Metric:
    """Return the histogram; each bucket of Prometheus holds those before it."""
    turns = {row["place"]: row["turns"] for row in rows}
    ends = enumerate((*map(str, TURN_TOOK_AT_MOST), "+Inf"))
    buckets = [(end, sum(turns.get(before, 0) for before in range(place + 1))) for place, end in ends]
    return HistogramMetricFamily(
        "threadtree_turn_seconds",
        "How long turns took from their start",
        buckets=buckets,
        sum_value=sum(row["seconds"] for row in rows),
    )
