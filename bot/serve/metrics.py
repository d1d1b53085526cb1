"""`GET /metrics`: the bot's figures for Prometheus. They are in rows, so that each process tells the same ones."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Final

import orjson
from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bot import counters
from bot.care import measures_rows as measures
from bot.store.database import DATABASE_AWAY, Pool

KEPT_SECONDS: Final = 5.0
"""Anybody may ask: the rows are counted once in this time."""
ANSWER_SECONDS: Final = 10.0
HELP: Final = {
    "deliveries": "Deliveries that wait or went wrong",
    "deliveries_oldest_seconds": "Age of the oldest one",
    "turns": "Turns that run, are queued, or wait until a time",
    "turns_oldest_seconds": "Age of the oldest one",
    "turns_ended": "Turns by their end",
    "outcomes": "Turns by what came of them",
    "checks": "Turns by how the repository's check ended",
    "waiting": "Turns that wait for a person",
    "waiting_oldest_seconds": "How long the oldest one waits",
    "cost_usd": "Cost of turns in US dollars, as far as it is known",
    "tokens": "Tokens of turns, as their agents tell them",
    "operations": "What operators asked of nodes",
    "outbox": "Writes to GitHub that wait, are sent or failed",
    "outbox_oldest_seconds": "How long the oldest one is due",
    "writers_held": "Writers that GitHub's limit holds back",
    "writers_held_seconds": "How long the last of them waits",
    "log_read_seconds": "Since GitHub's log of deliveries was read last",
    "worktrees": "Worktrees by node and state",
    "bytes": "Bytes on the disk",
    "disk_bytes": "Bytes in DATA_DIR at the last sweep",
    "node_silent_seconds": "Age of a node's last heartbeat",
    "jobs": "Jobs of the engine",
    "turn_seconds": "How long turns took from their start",
}
"""The figures that are read from rows."""
KINDS: Final = {
    **dict.fromkeys(("turns_ended", "outcomes", "checks", "cost_usd", "tokens"), "counter"),
    "turn_seconds": "histogram",
}
"""The others go up and down."""
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
                    text = _text(await measures.counted(pool), await measures.figures(pool))
                    known = time.monotonic(), text
        except _UNANSWERED:
            return Response("The database does not answer in time.\n", 503, media_type="text/plain")
        # https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
        return Response(known[1], media_type="text/plain; version=0.0.4")

    return Route("/metrics", metrics, methods=["GET"])


class _Families(list[Metric], Collector):
    """Families of figures, as the text of Prometheus is made of them."""

    def collect(self) -> list[Metric]:
        return self


def _text(counted: Sequence[tuple[str, str, float]], figures: Sequence[tuple[str, str, str, float]]) -> bytes:
    info = Metric("threadtree_info", "The version that runs", "gauge")
    info.add_sample(info.name, {"version": version("threadtree")}, 1)
    return generate_latest(_Families((info, *_counted(counted), *_in_rows(figures))))


def _counted(rows: Sequence[tuple[str, str, float]]) -> Iterator[Metric]:
    """Yield what the processes counted. A counter that is not in a row yet is there as 0."""
    values = {(name, label): value for name, label, value in rows}
    for family in counters.REGISTRY.collect():
        names = {f"{family.name}{suffix}" for suffix in ("", "_total", "_bucket", "_count", "_sum")}
        at_first = {} if family.type == "gauge" else dict.fromkeys(counters.samples_of(family), 0.0)
        family.samples = []
        for key, value in (at_first | {key: value for key, value in values.items() if key[0] in names}).items():
            family.add_sample(key[0], orjson.loads(key[1]), value)
        yield family


def _in_rows(rows: Sequence[tuple[str, str, str, float]]) -> Iterable[Metric]:
    families = {name: Metric(f"threadtree_{name}", text, KINDS.get(name, "gauge")) for name, text in HELP.items()}
    for figure, sample, labels, value in rows:
        family = families[figure]
        family.add_sample(f"{family.name}{sample}", orjson.loads(labels), value)
    return families.values()
