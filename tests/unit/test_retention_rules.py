"""When a worktree is due (DESIGN.md §4, retention), over every combination of what can be known of it."""

import contextlib
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bot.care.asked import Pruning, age_of
from bot.care.retention_rules import Facts, Kind, describe, exceeds_safety_limit, kind_of, reason_to_keep
from bot.model import DetachedHead, HeadBranch, IssueBranch
from tests.support.retention import policy_for

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
POLICY = policy_for(NOW, detached_days=30, branch_days=90, orphan_days=60, rescue_days=180)
DAY = timedelta(days=1)


def days_ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


@pytest.mark.parametrize(("kind", "days"), [(Kind.DETACHED, 30), (Kind.BRANCH, 90), (Kind.ORPHAN, 60)])
def test_each_kind_is_kept_for_its_own_time(kind: Kind, days: int) -> None:
    assert reason_to_keep(Facts(kind, days_ago(days)), POLICY) is None
    assert reason_to_keep(Facts(kind, days_ago(days - 0.01)), POLICY) is not None


@pytest.mark.parametrize("field", ["row_at", "metadata_at", "changed_at"])
def test_activity_is_the_newest_of_row_metadata_and_file_changes(field: str) -> None:
    times = dict.fromkeys(("row_at", "metadata_at", "changed_at"), days_ago(365)) | {field: days_ago(1)}
    facts = Facts(Kind.BRANCH, times["row_at"], metadata_at=times["metadata_at"], changed_at=times["changed_at"])
    assert reason_to_keep(facts, POLICY) == "Last activity 24 hours ago; one on a branch is kept for 90 days."


@pytest.mark.parametrize("field", ["row_at", "metadata_at", "changed_at"])
def test_a_time_in_the_future_counts_as_now(field: str) -> None:
    times = dict.fromkeys(("row_at", "metadata_at", "changed_at"), days_ago(365)) | {field: NOW + 1000 * DAY}
    facts = Facts(Kind.BRANCH, times["row_at"], metadata_at=times["metadata_at"], changed_at=times["changed_at"])
    assert reason_to_keep(facts, POLICY) == "Last activity 0 seconds ago; one on a branch is kept for 90 days."
    at_once = policy_for(
        NOW, detached_days=30, branch_days=90, orphan_days=60, rescue_days=180, older_than=timedelta(0)
    )
    assert reason_to_keep(facts, at_once) is None


def test_older_than_stands_for_all_kinds_but_not_for_rescues() -> None:
    policy = policy_for(
        NOW, detached_days=30, branch_days=90, orphan_days=60, rescue_days=180, older_than=timedelta(hours=24)
    )
    assert [policy.kept_for[kind] for kind in Kind] == [DAY] * 3
    assert policy.rescue == 180 * DAY


def test_every_combination_is_decided_and_only_the_harmless_are_due() -> None:
    seen = 0
    states: tuple[Literal["ok", "missing", "corrupt"], ...] = ("ok", "missing", "corrupt")
    flags = (True, False)
    for kind, directory, metadata, busy, locked, age in product(
        Kind, flags, states, flags, (None, "", "mine"), (1, 365)
    ):
        facts = Facts(kind, days_ago(age), directory, metadata, days_ago(age), None, busy=busy, locked=locked)
        why = reason_to_keep(facts, POLICY)
        quiet = not busy and locked is None
        due = quiet and age == 365 and (metadata == "ok" or not directory)
        assert (why is None) == due, facts
        assert why is None or why.endswith("."), facts
        seen += 1
    assert seen == 3 * 2 * 3 * 2 * 3 * 2


def test_lost_metadata_is_rebuilt_and_the_worktree_skipped_this_time() -> None:
    facts = Facts(Kind.BRANCH, days_ago(365), metadata="corrupt")
    assert reason_to_keep(facts, POLICY) == "Its metadata is corrupt: rebuilt, and checked again next time."


def test_the_kind_is_told_by_the_row() -> None:
    issue, head, detached = IssueBranch(1), HeadBranch("feature"), DetachedHead("a" * 40, "refs/pull/1/head")
    assert kind_of(detached, (1,)) == Kind.DETACHED
    assert kind_of(issue, (1,)) == kind_of(head, (1, 2)) == Kind.BRANCH
    assert kind_of(issue, ()) == kind_of(detached, ()) == Kind.ORPHAN


@pytest.mark.parametrize(
    ("due", "total", "expected"),
    [(10, 10, False), (11, 11, True), (11, 21, True), (11, 22, False), (500, 999, True), (500, 1000, False)],
)
def test_more_than_ten_and_more_than_half_at_once_stop_the_sweep(due: int, total: int, *, expected: bool) -> None:
    assert exceeds_safety_limit(due, total) is expected


def test_an_age_is_a_number_and_a_unit() -> None:
    for text, age in [
        ("90s", timedelta(seconds=90)),
        ("30m", timedelta(minutes=30)),
        ("24h", DAY),
        ("7d", 7 * DAY),
        ("2w", 14 * DAY),
        ("0s", timedelta(0)),
    ]:
        assert age_of(Pruning(older_than=text).older_than) == age


@given(st.text(max_size=12))
def test_every_text_is_an_age_that_can_be_counted_back_or_is_refused(text: str) -> None:
    with contextlib.suppress(ValidationError):
        assert NOW - (age_of(Pruning(older_than=text).older_than) or timedelta(0)) <= NOW


def test_what_only_looks_like_an_age_is_refused() -> None:
    for text in ["", "24", "h", "-1h", "1.5h", "24 hours", "1h30m", "٣h", "999999d", "24h\n"]:
        with pytest.raises(ValidationError):
            Pruning(older_than=text)


def test_the_longest_age_can_be_counted_back() -> None:
    assert NOW - (age_of("99999w") or timedelta(0)) < NOW


def test_ages_are_said_in_whole_units() -> None:
    for age, words in [
        (timedelta(seconds=5), "5 seconds"),
        (timedelta(minutes=3), "3 minutes"),
        (timedelta(minutes=90), "90 minutes"),
        (timedelta(hours=47), "47 hours"),
        (timedelta(days=90), "90 days"),
    ]:
        assert describe(age) == words
