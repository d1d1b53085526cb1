"""The usage limit of an agent's model, as its vendor's answers tell it."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from zoneinfo import ZoneInfo

import orjson

# A quota of a week is the longest that vendors have; anything later is a mistake.
LONGEST = timedelta(days=8)
MOST_BODY_BYTES = 64 * 1024

# Agents' words, as seen: "Claude AI usage limit reached|1747360800", "You've hit your limit · resets 3pm
# (Europe/Berlin)", "You've hit your usage limit. […] or try again in 4 days 3 hours.", "try again at Jan 1st, 2027
# 12:57 AM.", "You have exhausted your capacity on this model. Your quota will reset after 1h49m8s."
_LIMIT = re.compile(r"\b(limit|quota|capacity)\b", re.I)
_EPOCH = re.compile(r"limit reached\|([0-9]{10})\b", re.I)
_UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1), "m": timedelta(minutes=1), "s": timedelta(seconds=1)}
_SPAN = r"([0-9]{1,6}(?:\.[0-9]{1,6})?) ?(d|days?|h|hours?|m|min|minutes?|s|seconds?)(?![a-z])"
_AFTER = re.compile(rf"\b(?:reset after|reset in|(?:try again|retry) in) ((?:{_SPAN}[ ,]*)+)", re.I)
_CLOCK = re.compile(
    r"\b(?:resets?|try again)(?: at)? (?:(?P<month>jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]* "
    r"(?P<day>[0-9]{1,2})(?:st|nd|rd|th)?(?:, (?P<year>[0-9]{4}))?,?(?: at)? )?"
    r"(?P<hour>[0-9]{1,2})(?::(?P<minute>[0-9]{2}))? ?(?P<half>[ap])m\b(?: \((?P<zone>[A-Za-z0-9_+/-]{1,40})\))?",
    re.I,
)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]

_SECONDS = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)s")


class UsageLimit:
    """What a turn's agent was told of the limit: `until` is the reset that its vendor named, None without a limit."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._resets: dict[str, datetime] = {}

    @property
    def until(self) -> datetime | None:
        """The latest reset of a kind of request that was refused and has not succeeded since."""
        return max(self._resets.values(), default=None)

    def note(self, path: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Take in an answer; the names of `headers` are in lower case."""
        if status == 429 and (reset := reset_of(headers, body, self._clock())) is not None:
            self._resets[path] = reset
        elif 200 <= status < 300:
            self._resets.pop(path, None)


def reset_of(headers: Mapping[str, str], body: bytes, now: datetime) -> datetime | None:
    """Return when a limit ends that an answer tells of, None where it names no time or one that cannot be."""
    found = [moment for moment in (*_in_headers(headers, now), *_in_body(body, now)) if now <= moment <= now + LONGEST]
    return max(found, default=None)


def _in_headers(headers: Mapping[str, str], now: datetime) -> Iterator[datetime]:
    # https://www.rfc-editor.org/rfc/rfc9110#field.retry-after: seconds or a date
    if (value := headers.get("retry-after")) is not None:
        if re.fullmatch(r"[0-9]{1,9}", value):
            yield now + timedelta(seconds=int(value))
        else:
            try:
                date = parsedate_to_datetime(value)
            except ValueError:
                return
            yield date if date.tzinfo else date.replace(tzinfo=UTC)
    # The limit of a subscription to Claude.
    if re.fullmatch(r"[0-9]{1,10}", value := headers.get("anthropic-ratelimit-unified-reset", "")):
        yield datetime.fromtimestamp(int(value), UTC)


def _in_body(body: bytes, now: datetime) -> Iterator[datetime]:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return
    # Gemini puts its error into a list where it was asked for a stream.
    parsed = parsed[0] if isinstance(parsed, list) and parsed else parsed
    error = parsed.get("error") if isinstance(parsed, dict) else None
    if not isinstance(error, dict):
        return
    # OpenAI's limit of a plan.
    match error:
        case {"resets_at": int(at)} if 0 < at < 10**10:
            yield datetime.fromtimestamp(at, UTC)
        case {"resets_in_seconds": int() | float() as seconds} if 0 <= seconds < 10**9:
            yield now + timedelta(seconds=seconds)
        case _:
            pass
    # https://github.com/googleapis/googleapis/blob/master/google/rpc/error_details.proto (RetryInfo)
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and (found := _SECONDS.fullmatch(delay)):
            yield now + timedelta(seconds=float(found[1]))


def reset_in_words(words: str, now: datetime) -> datetime | None:
    """Return when a limit ends that an agent's error tells of, None where it names no time or one that cannot be.

    A time of day without a zone is this machine's.
    """
    if _LIMIT.search(words) is None:
        return None
    found: datetime | None = None
    if (epoch := _EPOCH.search(words)) is not None:
        found = datetime.fromtimestamp(int(epoch[1]), UTC)
    elif (after := _AFTER.search(words)) is not None:
        found = now + sum(
            (float(count) * _UNITS[unit[0].lower()] for count, unit in re.findall(_SPAN, after[1], re.I)), timedelta()
        )
    elif (clock := _CLOCK.search(words)) is not None:
        found = _at_clock(clock, now)
    return found if found is not None and now <= found <= now + LONGEST else None


def _at_clock(said: re.Match[str], now: datetime) -> datetime | None:
    """Return the next moment with that time of day, and on that date where one is said."""
    try:
        zone = ZoneInfo(said["zone"]) if said["zone"] else None
        hour = int(said["hour"]) % 12 + (12 if said["half"].lower() == "p" else 0)
        local = now.astimezone(zone)
        found = local.replace(hour=hour, minute=int(said["minute"] or 0), second=0, microsecond=0)
        if said["month"] is None:
            return found if found >= now else found + timedelta(days=1)
        found = found.replace(month=_MONTHS.index(said["month"].lower()) + 1, day=int(said["day"]))
        if said["year"] is not None:
            return found.replace(year=int(said["year"]))
        return found if found >= now else found.replace(year=found.year + 1)
    except (ValueError, LookupError, OSError):  # no such date, or no such zone
        return None
