"""Charts by day: costs and requests as bars, how long requests took as curves. A template draws them, as text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from math import floor, log10
from typing import Any, Final

from bot.operator.api.figures import Costs

HEIGHT: Final = 100.0
SERIES: Final = 5
"""The repositories with a colour of their own; the others share one."""
_OTHERS: Final = "others"
ENDS: Final = {"done": 0, "stopped": SERIES, "failed": SERIES - 1}
"""How requests end, with the numbers of their colours: every end but the first two is a failure."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle of the chart: what counts of one name on one day. `series` is the number of its colour."""

    x: int
    y: float
    height: float
    series: int
    name: str
    day: date
    value: float


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars in a field that is `days` wide and HEIGHT high, which stands for `most`. `series`: names and colours."""

    bars: Sequence[Bar]
    series: Mapping[str, int]
    days: Sequence[date]
    most: float


def cost_chart(rows: Sequence[Costs], last: date, days: int) -> Chart:
    """Return the chart of the `days` until `last`. The repositories that cost most come first, at the bottom."""
    values = [(row.day, row.name, row.cost_usd) for row in rows if row.cost_usd]
    totals: dict[str, float] = {}
    for day, name, cost in values:
        if last - timedelta(days=days) < day <= last:
            totals[name] = totals.get(name, 0.0) + cost
    ranked = sorted(totals, key=lambda name: (-totals[name], name))
    legend = dict(zip([*ranked[:SERIES], _OTHERS], range(len(ranked)), strict=False))
    colours = {name: min(place, SERIES) for place, name in enumerate(ranked)}
    return _stacked(values, colours, legend, last, days)


def turns_chart(by_day: Mapping[date, Mapping[str, Any]], last: date, days: int) -> Chart:
    """Return the chart of how the requests of each day ended."""
    values = [(day, end, row[end]) for day, row in by_day.items() for end in ENDS if row[end]]
    return _stacked(values, ENDS, ENDS, last, days)


def _stacked(
    values: Iterable[tuple[date, str, float]],
    colours: Mapping[str, int],
    legend: Mapping[str, int],
    last: date,
    days: int,
) -> Chart:
    """Return bars that stand on each other in the order of `colours`."""
    by_day: dict[date, dict[str, float]] = {day: {} for day in _days(last, days)}
    for day, name, value in values:
        if day in by_day:
            by_day[day][name] = value
    most = _round_up(max((sum(named.values()) for named in by_day.values()), default=0.0))
    bars: list[Bar] = []
    for x, (day, named) in enumerate(by_day.items()):
        y = HEIGHT
        for name in filter(named.get, colours):
            height = named[name] / most * HEIGHT
            y -= height
            bars.append(Bar(x, y, height, colours[name], name, day, named[name]))
    return Chart(bars, legend, list(by_day), most)


def curves(by_day: Mapping[date, Mapping[str, Any]], last: date, days: int) -> tuple[Sequence[str], float]:
    """Return how long half of each day's requests took, and nearly all: paths, and the seconds of the field's height.

    A day on which none ran is passed over.
    """
    shown = [(x + 0.5, by_day[day]["seconds"]) for x, day in enumerate(_days(last, days)) if day in by_day]
    ran = [(x, seconds) for x, seconds in shown if seconds is not None]
    most = max((seconds[1] for _, seconds in ran), default=0.0) or 1.0
    points = [[f"{x} {HEIGHT - seconds[which] / most * HEIGHT:.2f}" for x, seconds in ran] for which in (0, 1)]
    return [f"M{'L'.join(one)}h0" if one else "" for one in points], most


def _days(last: date, days: int) -> list[date]:
    return [last - timedelta(days=days - 1 - place) for place in range(days)]


def _round_up(number: float) -> float:
    """Return the next of 1, 2, 5, 10, 20 … (and tenths of them): the height of a chart that people read easily."""
    if number <= 0:
        return 1.0
    power = 10.0 ** floor(log10(number))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= number * 0.999999))
