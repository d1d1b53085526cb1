"""When the bot may write to GitHub, and in which order. Pure: times in, times out."""

from collections.abc import Sequence
from datetime import datetime, timedelta

# https://docs.github.com/rest/using-the-rest-api/best-practices-for-using-the-rest-api#pause-between-mutative-requests
SPACING = timedelta(seconds=1)
"""Between creations where there are many: a writer that was silent may create BURST at once."""
BURST = 5
# https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api#about-secondary-rate-limits
MOST_A_MINUTE = 80
MOST_AN_HOUR = 500
HOUR = timedelta(hours=1)

AT_ONCE, FINAL, PROGRESS, DECLINED = 0, 1, 2, 3
"""Urgencies, lowest first: 👀 and command answers, then final answers, then progress, then 😕."""
DECLINED_SHARE = 10
"""At most one in so many creations may be a 😕: anybody can cause one."""
PERSON_SHARE = 4
"""A person may have had so many times what is left of an hour's creations: something is always left for others."""

_FIRST_BACKOFF = timedelta(seconds=2)
_LONGEST_BACKOFF = timedelta(minutes=15)
_PROGRESS_PAUSES = ((timedelta(minutes=2), timedelta(seconds=5)), (timedelta(minutes=10), timedelta(seconds=15)))
_LONGEST_PROGRESS_PAUSE = timedelta(seconds=60)
MOST_ATTEMPTS = 100
"""About a day of the longest backoff; after that the row fails."""
NOT_FOUND_ATTEMPTS = 8
"""About nine minutes. A 404 also comes from a replica that is behind, a token that is new, a suspended installation."""


def next_creation(created: Sequence[datetime], now: datetime, *, share: int = 1) -> datetime:
    """Return when the next creation may go, `now` or later, after those of the last hour (oldest first).

    In any time go at most BURST, and one more for each SPACING of it. With `share`, `created` are those of one kind,
    which may use one part in so many of the budget.
    """
    burst, a_minute, an_hour = max(1, BURST // share), MOST_A_MINUTE // share, MOST_AN_HOUR // share
    since = enumerate(reversed(created), 1)
    earliest = max((at + SPACING * (count + 1 - burst) for count, at in since), default=now)
    earliest = max(earliest, now)
    if len(created) >= a_minute:
        earliest = max(earliest, created[-a_minute] + timedelta(minutes=1))
    if len(created) >= an_hour:
        earliest = max(earliest, created[-an_hour] + HOUR)
    return earliest


def most_of_person(created_last_hour: int) -> int:
    """Return how many of the last hour's creations may have been for one person, to create more for that one."""
    return PERSON_SHARE * max(0, MOST_AN_HOUR - created_last_hour)


def backoff(attempts: int, retry_after_seconds: float | None) -> timedelta:
    """Return how long a row waits after its failed attempt number `attempts` (from 0): at least as GitHub asked."""
    own: timedelta = min(_FIRST_BACKOFF * 2 ** min(attempts, 10), _LONGEST_BACKOFF)
    return max(own, timedelta(seconds=retry_after_seconds or 0))


def next_edit(
    started_at: datetime, last_edit_at: datetime | None, now: datetime, created_last_hour: int
) -> datetime | None:
    """Return when the next progress edit may go; None when half of the hour's budget is used.

    `started_at` is the turn's start: the longer it runs, the less often it is edited.
    """
    if created_last_hour * 2 >= MOST_AN_HOUR:
        return None
    if last_edit_at is None:
        return now
    age = now - started_at
    pause = next((pause for younger_than, pause in _PROGRESS_PAUSES if age < younger_than), _LONGEST_PROGRESS_PAUSE)
    return max(now, last_edit_at + pause)
