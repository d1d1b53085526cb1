"""The usage limit of an agent's model, as its vendor's answers tell it."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import orjson

# A quota of a week is the longest that vendors have; anything later is a mistake.
LONGEST = timedelta(days=8)
MOST_BODY_BYTES = 64 * 1024

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
