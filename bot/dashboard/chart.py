"""The cost by day and repository, as the bars of a chart. A template draws them: no text is markup here."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from math import floor, log10
from typing import Final

from bot.api.rows import Costs

HEIGHT: Final = 100.0
SERIES: Final = 5
"""The repositories with a colour of their own; the others share one."""
_OTHERS: Final = "others"


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle of the chart: the costs of one day and repository. `series` is the number of its colour."""

    x: int
    y: float
    height: float
    series: int
    codebase: str
    day: date
    cost_usd: float


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars in a field that is `days` wide and HEIGHT high, which stands for `most` dollars."""

    bars: Sequence[Bar]
    series: Sequence[str]
    days: Sequence[date]
    most: float


def cost_chart(rows: Sequence[Costs], last: date, days: int) -> Chart:
    """Return the chart of the `days` until `last`. The repositories that cost most come first, at the bottom."""
    shown = [last - timedelta(days=days - 1 - place) for place in range(days)]
    totals: dict[str, float] = {}
    by_day: dict[date, dict[str, float]] = {day: {} for day in shown}
    for row in rows:
        if row.cost_usd and row.day in by_day:
            totals[row.codebase] = totals.get(row.codebase, 0.0) + row.cost_usd
            by_day[row.day][row.codebase] = row.cost_usd
    ranked = sorted(totals, key=lambda name: (-totals[name], name))
    most = _round_up(max((sum(costs.values()) for costs in by_day.values()), default=0.0))
    bars: list[Bar] = []
    for x, (day, costs) in enumerate(by_day.items()):
        y = HEIGHT
        for place, name in enumerate(ranked):
            if name in costs:
                height = costs[name] / most * HEIGHT
                y -= height
                bars.append(Bar(x, y, height, min(place, SERIES), name, day, costs[name]))
    names = [*ranked[:SERIES], *([_OTHERS] if len(ranked) > SERIES else [])]
    return Chart(bars, names, shown, most)


def _round_up(dollars: float) -> float:
    """Return the next of 1, 2, 5, 10, 20 … (and tenths of them): the height of a chart that people read easily."""
    if dollars <= 0:
        return 1.0
    power = 10.0 ** floor(log10(dollars))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= dollars * 0.999999))
