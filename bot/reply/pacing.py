"""When a tracking comment may show progress again. Pure: times in, a time out."""

from datetime import datetime, timedelta

from bot.reply.limits import MOST_AN_HOUR

_STEPS = (
    (timedelta(minutes=2), timedelta(seconds=5)),
    (timedelta(minutes=10), timedelta(seconds=15)),
)
_SLOWEST = timedelta(seconds=60)


def next_edit(
    started_at: datetime, last_edit_at: datetime | None, now: datetime, created_last_hour: int
) -> datetime | None:
    """The earliest moment for the next progress edit; None when half the lane's hourly budget is gone.

    `started_at` is the turn's start: the longer it runs, the less often it is edited.
    """
    if created_last_hour * 2 >= MOST_AN_HOUR:
        return None
    if last_edit_at is None:
        return now
    age = now - started_at
    pause = next((pause for younger_than, pause in _STEPS if age < younger_than), _SLOWEST)
    return max(now, last_edit_at + pause)
