"""When a vendor's usage limit ends, from its answers."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.network.usage_limit import UsageLimit, reset_of

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
