"""When GitHub may be written to, and when progress may be shown."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.thread import pacing
from bot.thread.pacing import DECLINED_SHARE, HOUR, backoff, next_creation, next_edit

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def test_the_first_comment_goes_at_once() -> None:
    assert next_creation([], NOW) == NOW


def test_a_silent_writer_sends_five_at_once_and_then_one_a_second() -> None:
    created: list[datetime] = []
    for _ in range(8):
        created.append(next_creation(created, NOW))
    assert [(at - NOW).total_seconds() for at in created] == [0, 0, 0, 0, 0, 1, 2, 3]


def test_after_five_seconds_of_silence_five_may_go_at_once_again() -> None:
    created = [NOW - seconds(ago) for ago in (7, 7, 7, 7, 7, 6)]
    assert next_creation(created, NOW - seconds(5.5)) == NOW - seconds(5)
    for _ in range(5):
        assert next_creation(created, NOW) == NOW
        created.append(NOW)
    assert next_creation(created, NOW) == NOW + seconds(1)


def test_reactions_to_outsiders_are_a_second_apart() -> None:
    assert next_creation([NOW - seconds(0.25)], NOW, share=DECLINED_SHARE) == NOW + seconds(0.75)


def test_the_eighty_first_of_a_minute_waits_until_the_first_is_a_minute_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "SPACING", timedelta())
    created = [NOW - seconds(50) + seconds(number / 2) for number in range(80)]
    assert next_creation(created, NOW) == NOW + seconds(10)


def test_the_five_hundred_and_first_of_an_hour_waits_for_the_hour() -> None:
    created = [NOW - seconds(3500) + seconds(number * 5) for number in range(500)]
    assert next_creation(created, NOW) == NOW + seconds(100)


@given(st.lists(st.one_of(st.just(0), st.floats(0, 30)), min_size=1, max_size=700))
def test_no_limit_is_ever_exceeded(pauses: list[float]) -> None:
    now, created = NOW, [NOW]
    for pause in pauses:
        now += seconds(pause)
        now = next_creation([at for at in created if at > now - HOUR], now)
        created.append(now)
        for age in (0, 1, 2.5, 10):
            assert sum(at >= now - seconds(age) for at in created) <= 5 + age
        assert sum(at > now - timedelta(minutes=1) for at in created) <= 80
        assert sum(at > now - HOUR for at in created) <= 500


def test_a_failing_row_backs_off_up_to_a_quarter_of_an_hour() -> None:
    assert [backoff(attempts, None).total_seconds() for attempts in (0, 1, 2, 50)] == [2, 4, 8, 900]


def test_github_is_never_asked_earlier_than_it_said() -> None:
    assert backoff(0, 61) == seconds(61)


@pytest.mark.parametrize(("age_minutes", "pause"), [(0, 5), (1.9, 5), (2, 15), (9.9, 15), (10, 60), (100, 60)])
def test_the_older_a_turn_the_rarer_its_progress(age_minutes: float, pause: int) -> None:
    assert next_edit(NOW - timedelta(minutes=age_minutes), NOW, NOW, 0) == NOW + seconds(pause)


def test_the_first_progress_shows_at_once() -> None:
    assert next_edit(NOW, None, NOW, 0) == NOW


def test_progress_is_dropped_when_half_the_budget_of_the_hour_is_gone() -> None:
    assert next_edit(NOW, None, NOW, 249) == NOW
    assert next_edit(NOW, None, NOW, 250) is None
