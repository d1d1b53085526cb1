"""What the answers of an agent's model tell, whatever agent asks: its usage limit, the tokens it counts, its name."""

import base64
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
MOST_LINE_BYTES = 1 << 20
"""A longer event of a stream, or a longer answer in one piece, is passed on without a look at it."""

# A stream that began well can end in one of these:
# https://docs.claude.com/en/api/errors · https://platform.openai.com/docs/guides/error-codes
_BUSY_ERRORS = ("overloaded_error", "rate_limit_error", "rate_limit_exceeded", "server_is_overloaded", "slow_down")
# Amazon's frames hold events of the Messages API:
# https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_PayloadPart.html
_FRAMED = re.compile(rb'"bytes":\s?"((?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?)"')
_TELLS = re.compile(rb'"usage|overloaded|rate_limit|slow_down')
# https://docs.claude.com/en/api/messages · https://platform.openai.com/docs/api-reference · https://ai.google.dev/api
_SUMS = ("total_tokens", "totalTokenCount")
_PARTS = (
    *("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"),
    *("prompt_tokens", "completion_tokens"),
)
MOST_TOKENS = 10**9
"""The most that one answer, or one prompt, can cost."""
MOST_DOLLARS = 1e6
"""A cost above this is wrong, whoever tells it."""
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
        self._tokens: dict[str | None, int] = {}
        """By the model's name."""
        self.cost_usd: float | None = None
        """What the answers that tell their cost add up to."""

    @property
    def refuses(self) -> bool:
        """Whether the model took no request of some kind last."""
        return bool(self._refused)

    @property
    def until(self) -> datetime | None:
        """The latest reset of a kind of request that was refused and has not succeeded since."""
        return max(self._resets.values(), default=None)

    @property
    def tokens(self) -> int:
        """All tokens, also those read from the vendor's cache and written to it."""
        return sum(self._tokens.values())

    @property
    def model(self) -> str | None:
        """The model that worked most; agents ask smaller ones for titles and summaries."""
        return max((name for name in self._tokens if name), key=lambda name: self._tokens[name], default=None)

    def begin(self, path: str, status: int, headers: Mapping[str, str]) -> "ModelAnswer":
        """Take in the head of an answer; the names of `headers` are in lower case."""
        kind = path.rpartition(":")[2]  # Gemini's paths name the model, and its CLI goes on with another one
        if status in BUSY_STATUSES:
            self.busy(kind)
        elif 200 <= status < 300 and kind in self._refused:
            self._refused.discard(kind)
            self._on_change(self)
        return ModelAnswer(self, kind, status, headers)

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

    def count(self, model: str | None, tokens: int) -> None:
        """Note more tokens of a model."""
        self._tokens[model] = self._tokens.get(model, 0) + tokens
        self._on_change(self)

    def charge(self, dollars: float) -> None:
        """Note what an answer cost."""
        self.cost_usd = (self.cost_usd or 0) + dollars
        self._on_change(self)


class ModelAnswer:
    """One answer while it passes: it is read by events, and none is kept."""

    def __init__(self, all_answers: ModelAnswers, kind: str, status: int, headers: Mapping[str, str]) -> None:
        self._all = all_answers
        self._kind, self._status, self._headers = kind, status, headers
        kind_of_body = headers.get("content-type", "")
        self._is_stream = kind_of_body.startswith("text/event-stream")
        self._is_framed = kind_of_body.startswith("application/vnd.amazon.eventstream")
        self._line = bytearray()
        self._is_long = False
        self._model: str | None = None
        self._told: dict[str, int] = {}
        self._counted = 0
        self._charged = 0.0

    def feed(self, chunk: bytes) -> None:
        """Take in the next piece of the body."""
        if self._is_framed:
            self._add(chunk)
            events = list(_FRAMED.finditer(self._line))
            for event in events:
                self._read_json(base64.b64decode(event[1]))
            del self._line[: events[-1].end() if events else 0]
            return
        first, *others = chunk.split(b"\n") if self._is_stream else [chunk]
        self._add(first)
        for piece in others:
            self._read_line()
            self._add(piece)

    def end(self) -> None:
        """Take in the end of the body."""
        body = bytes(self._line[:MOST_BODY_BYTES])
        self._read_line()
        self._all.ended(self._kind, self._status, self._headers, body)

    def _add(self, piece: bytes) -> None:
        self._is_long = self._is_long or len(self._line) + len(piece) > MOST_LINE_BYTES
        if self._is_long:
            self._line.clear()
        else:
            self._line += piece

    def _read_line(self) -> None:
        line, self._line, self._is_long = self._line, bytearray(), False
        self._read_json(line)

    def _read_json(self, line: bytes | bytearray) -> None:
        if not 200 <= self._status < 300 or _TELLS.search(line) is None:
            return
        try:
            value = orjson.loads(line.removeprefix(b"data:"))
        except orjson.JSONDecodeError:
            return
        # Gemini streams a list where it is not asked for events.
        for one in value if isinstance(value, list) else [value]:
            for part in (one, *(one.get(name) for name in ("message", "response"))) if isinstance(one, dict) else ():
                if isinstance(part, dict):
                    self._read(part)

    def _read(self, told: dict[str, object]) -> None:
        error = told.get("error")
        if isinstance(error, dict) and any(error.get(name) in _BUSY_ERRORS for name in ("type", "code")):
            self._all.busy(self._kind)
        name = told.get("model") or told.get("modelVersion")
        if isinstance(name, str) and is_model_name(name):
            self._model = name
        usage = told.get("usage") or told.get("usageMetadata")
        if isinstance(usage, dict):
            # A later event of the same answer has sums of the whole answer, though not always all of them.
            self._told |= {name: usage[name] for name in (*_SUMS, *_PARTS) if _is_count(usage.get(name))}
            whole = next((self._told[name] for name in _SUMS if name in self._told), None)
            tokens = sum(self._told.get(name, 0) for name in _PARTS) if whole is None else whole
            if tokens > self._counted:
                self._all.count(self._model, tokens - self._counted)
                self._counted = tokens
            # In US dollars, of the whole answer: https://openrouter.ai/docs/use-cases/usage-accounting
            cost = usage.get("cost")
            if isinstance(cost, float | int) and cost is not True and self._charged < cost <= MOST_DOLLARS:
                self._all.charge(cost - self._charged)
                self._charged = cost


def is_model_name(text: str) -> bool:
    """Return whether this can be the name of a model, from wherever it comes."""
    return _MODEL_NAME.fullmatch(text) is not None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= MOST_TOKENS


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
