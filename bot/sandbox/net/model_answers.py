"""What the answers of an agent's model tell, whatever agent asks: its usage limit, and its name."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import orjson

# A quota of a week is the longest that vendors have; anything later is a mistake.
LONGEST = timedelta(days=8)
MOST_BODY_BYTES = 64 * 1024
BUSY_STATUSES = (429, 529)
"""Too many requests, and a vendor's "overloaded"."""

# A stream that began well can end in one of these. In the model's own words, quotation marks follow a backslash.
# https://docs.claude.com/en/api/errors · https://platform.openai.com/docs/guides/error-codes
_BUSY_ERROR = re.compile(
    rb'"error":\s?\{[^{}]{0,300}?"(?:type|code)":\s?'
    rb'"(?:overloaded_error|rate_limit_error|rate_limit_exceeded|server_is_overloaded|slow_down)"'
)
# https://docs.claude.com/en/api/messages · https://platform.openai.com/docs/api-reference
_MODEL = re.compile(rb'"model":\s?"([\w./:@+\[\]-]{1,100})"')
# https://ai.google.dev/api · https://docs.aws.amazon.com/bedrock/latest/APIReference, whose streams are frames
_MODEL_IN_PATH = re.compile(r"/models?/([\w./:@+\[\]-]{1,100})(?::[A-Za-z]+|/invoke[a-z-]*)")
_OVERLAP_BYTES = 512
"""What is looked for is shorter, and can be cut between two chunks."""
_MODEL_NAME = re.compile(r"[\w./:@+\[\]-]{1,100}")
_SECONDS = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)s")


class ModelAnswers:
    """What the answers to a turn's agent told so far; `on_change` is called with it after each news."""

    def __init__(
        self,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_change: Callable[["ModelAnswers"], None] = lambda _: None,
    ) -> None:
        self._clock = clock
        self._on_change = on_change
        self._resets: dict[str, datetime] = {}
        self._refused: set[str] = set()
        self.model: str | None = None
        """The model of the longest answer: agents ask smaller ones for titles and summaries."""
        self._longest = -1

    @property
    def refuses(self) -> bool:
        """Whether the model took no request of some kind last."""
        return bool(self._refused)

    @property
    def until(self) -> datetime | None:
        """The latest reset of a kind of request that was refused and has not succeeded since."""
        return max(self._resets.values(), default=None)

    def begin(self, path: str, status: int, headers: Mapping[str, str]) -> "ModelAnswer":
        """Take in the head of an answer; the names of `headers` are in lower case."""
        kind = path.rpartition(":")[2]  # Gemini's paths name the model, and its CLI goes on with another one
        if status in BUSY_STATUSES:
            self.busy(kind)
        elif 200 <= status < 300 and kind in self._refused:
            self._refused.discard(kind)
            self._on_change(self)
        named = _MODEL_IN_PATH.search(path)
        return ModelAnswer(self, kind, status, headers, named[1] if named else None)

    def ended(self, kind: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Take in the whole of an answer, of which only a refusal has a body here."""
        if status in BUSY_STATUSES and (reset := reset_of(headers, body, self._clock())) is not None:
            self._resets[kind] = reset
        elif 200 <= status < 300:
            self._resets.pop(kind, None)

    def busy(self, kind: str) -> None:
        """Note that the model takes no more requests of this kind; also a stream can end with that."""
        self._refused.add(kind)
        self._on_change(self)

    def named(self, model: str, length: int) -> None:
        """Note the model of an answer that is this long so far."""
        if length > self._longest:
            is_news, self.model, self._longest = model != self.model, model, length
            if is_news:
                self._on_change(self)


class ModelAnswer:
    """One answer while it passes. Only the beginning of a refusal is kept."""

    def __init__(
        self, all_answers: ModelAnswers, kind: str, status: int, headers: Mapping[str, str], model: str | None
    ) -> None:
        self._all = all_answers
        self._kind, self._status, self._headers = kind, status, headers
        self._is_refused = not 200 <= status < 300
        self._kept = b""
        self._length = 0
        self._model = model

    def feed(self, chunk: bytes) -> None:
        """Take in the next piece of the body."""
        if self._is_refused:
            self._kept += chunk[: MOST_BODY_BYTES - len(self._kept)]
            return
        self._length += len(chunk)
        seen = self._kept + chunk
        self._kept = seen[-_OVERLAP_BYTES:]
        if _BUSY_ERROR.search(seen):
            self._all.busy(self._kind)
        if self._model is None and (found := _MODEL.search(seen)):
            self._model = found[1].decode()
        if self._model is not None:
            self._all.named(self._model, self._length)

    def end(self) -> None:
        """Take in the end of the body."""
        self._all.ended(self._kind, self._status, self._headers, self._kept if self._is_refused else b"")


def is_model_name(text: str) -> bool:
    """Return whether this can be the name of a model, from wherever it comes."""
    return _MODEL_NAME.fullmatch(text) is not None


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
