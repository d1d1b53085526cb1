"""The bars of the chart of costs, by properties."""

from datetime import date, timedelta

from hypothesis import given
from hypothesis import strategies as st

from bot.operator.api.figures import Costs
from bot.operator.dashboard.chart import HEIGHT, SERIES, cost_chart

LAST = date(2026, 3, 1)


def costs(day: date, codebase: str, cost_usd: float | None) -> Costs:
    return Costs(day=day, codebase=codebase, turns=1, untold=0, cost_usd=cost_usd, tokens=None)


ROWS = st.lists(
    st.builds(
        costs,
        st.integers(0, 12).map(lambda days: LAST - timedelta(days=days)),
        st.sampled_from([f"octo/{name}" for name in "abcdefgh"]),
        st.one_of(st.none(), st.just(0.0), st.floats(0.001, 5000)),
    ),
    max_size=40,
    unique_by=lambda row: (row.day, row.codebase),
)


@given(ROWS, st.integers(1, 10))
def test_bars_stand_on_each_other_within_the_field_and_stand_for_their_cost(rows: list[Costs], days: int) -> None:
    chart = cost_chart(rows, LAST, days)
    assert len(chart.days) == days
    assert chart.days[-1] == LAST
    assert len(chart.series) <= SERIES + 1
    for x in range(days):
        bars = [bar for bar in chart.bars if bar.x == x]
        floor = HEIGHT
        for bar in bars:
            assert abs(bar.y + bar.height - floor) < 1e-6
            assert abs(bar.height / HEIGHT * chart.most - bar.value) < 1e-6 * chart.most
            floor = bar.y
        assert floor > -1e-3
    shown = [row for row in rows if row.cost_usd and row.day in chart.days]
    assert len(chart.bars) == len(shown)
    assert {bar.series for bar in chart.bars} <= set(range(len(chart.series)))


def test_the_height_is_a_round_number() -> None:
    def most(dollars: float) -> float:
        return cost_chart([costs(LAST, "octo/a", dollars)], LAST, 1).most

    assert [most(dollars) for dollars in (0.03, 0.9, 1.0, 1.1, 4, 7.3, 180)] == [0.05, 1, 1, 2, 5, 10, 200]
    assert cost_chart([], LAST, 7).most == 1
