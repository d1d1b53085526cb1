"""When the next creating request of a lane may go, and when a failed one again. Pure: times in, times out."""

from collections.abc import Sequence
from datetime import datetime, timedelta

# https://docs.github.com/rest/using-the-rest-api/best-practices-for-using-the-rest-api#pause-between-mutative-requests
SPACING = timedelta(seconds=1)
# https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api#about-secondary-rate-limits
MOST_A_MINUTE = 80
MOST_AN_HOUR = 500
HOUR = timedelta(hours=1)

_FIRST_BACKOFF = timedelta(seconds=2)
_LONGEST_BACKOFF = timedelta(minutes=15)
MOST_ATTEMPTS = 100
"""About a day of the longest backoff: after that the row is given up."""


def next_creation(created: Sequence[datetime], now: datetime) -> datetime:
    """The earliest moment, `now` or later, for one more creation after those of the last hour (oldest first)."""
    earliest = now
    if created:
        earliest = max(earliest, created[-1] + SPACING)
    if len(created) >= MOST_A_MINUTE:
        earliest = max(earliest, created[-MOST_A_MINUTE] + timedelta(minutes=1))
    if len(created) >= MOST_AN_HOUR:
        earliest = max(earliest, created[-MOST_AN_HOUR] + HOUR)
    return earliest


def backoff(attempts: int, retry_after_seconds: float | None) -> timedelta:
    """How long a row waits after its failed attempt number `attempts` (from 0), never less than GitHub asked for."""
    own: timedelta = min(_FIRST_BACKOFF * 2 ** min(attempts, 10), _LONGEST_BACKOFF)
    return max(own, timedelta(seconds=retry_after_seconds or 0))
