"""When a vendor's usage limit ends, from its answers."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.network.usage_limit import UsageLimit, reset_in_words, reset_of

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
HOUR = NOW + timedelta(hours=1)
EPOCH = int(HOUR.timestamp())


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"retry-after": "3600"}, b""),
        ({"retry-after": format_datetime(HOUR, usegmt=True)}, b""),
        ({"retry-after": "5", "anthropic-ratelimit-unified-reset": str(EPOCH)}, b""),
        ({}, b'{"error": {"type": "usage_limit_reached", "resets_at": %d}}' % EPOCH),
        ({}, b'{"error": {"type": "usage_limit_reached", "resets_in_seconds": 3600}}'),
        ({}, b'[{"error": {"details": [{"reason": "x"}, {"retryDelay": "3600s"}]}}]'),
    ],
)
def test_the_end_of_a_limit_is_what_the_vendor_names(headers: dict[str, str], body: bytes) -> None:
    assert reset_of(headers, body, NOW) == HOUR


@given(
    st.dictionaries(st.sampled_from(["retry-after", "anthropic-ratelimit-unified-reset"]), st.text(max_size=12)),
    st.one_of(st.binary(max_size=40), st.sampled_from([b'{"error": 1}', b"[]", b'{"error": {"resets_at": -1}}'])),
)
def test_any_other_answer_names_no_time_beyond_a_week_or_in_the_past(headers: dict[str, str], body: bytes) -> None:
    reset = reset_of(headers, body, NOW)
    assert reset is None or NOW <= reset <= NOW + timedelta(days=8)


def test_a_limit_ends_when_the_same_kind_of_request_succeeds() -> None:
    limit = UsageLimit(lambda: NOW)
    limit.note("/v1/messages", 429, {"retry-after": "3600"}, b"")
    limit.note("/v1/messages/count_tokens", 200, {}, b"")
    limit.note("/v1/messages", 529, {}, b"")
    assert limit.until == HOUR
    limit.note("/v1/messages", 200, {}, b"")
    assert limit.until is None


@pytest.mark.parametrize(
    ("words", "reset"),
    [
        (f"Claude AI usage limit reached|{EPOCH}", HOUR),
        ("`You've hit your limit · resets 3pm (Europe/Berlin)`", HOUR),
        ("5-hour limit reached ∙ resets 2:30pm (Europe/Berlin)", HOUR - timedelta(minutes=30)),
        ("Claude usage limit reached. Your limit will reset at 1am (Etc/GMT+5)", NOW.replace(day=2, hour=6)),
        ("You've hit your weekly limit · resets May 4 at 10am (UTC)", NOW.replace(day=4, hour=10)),
        ("You've hit your usage limit. Upgrade to Pro or try again in 4 days 3 hours 9 minutes.", 4),
        ("You have exhausted your capacity on this model. Your quota will reset after 1h0m0s.", HOUR),
        ("Quota exceeded. Please retry in 3600.0s", HOUR),
        # No time, one that cannot be, or another problem.
        ("You've hit your usage limit. Upgrade to Pro or try again later.", None),
        ("Claude AI usage limit reached|1000000000", None),
        ("limit · resets Feb 31 at 10am (UTC)", None),
        ("limit · resets 3pm (No/Where)", None),
        ("Your quota will reset after 999999 days", None),
        ("Overloaded. Please try again in 30 seconds", None),
    ],
)
def test_an_agent_with_a_login_of_its_own_names_the_end_in_words(words: str, reset: datetime | int | None) -> None:
    expected = NOW + timedelta(days=4, hours=3, minutes=9) if reset == 4 else reset
    assert reset_in_words(words, NOW) == expected


@given(st.from_regex(r"limit (resets|try again|reset after|try again in)( at)? [0-9a-z:, ()/|.]{0,40}"))
def test_any_words_name_no_time_beyond_a_week_or_in_the_past(words: str) -> None:
    reset = reset_in_words(words, NOW)
    assert reset is None or NOW <= reset <= NOW + timedelta(days=8)
