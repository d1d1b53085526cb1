"""Faults of GitHub that a test can switch on.

Each request takes the first rule that matches its method and path; a rule ends after `times` requests or at `clear()`.
Limits as in https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class Latency:
    """The request is handled after this many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Held:
    """The request is handled once the event is set."""

    until: asyncio.Event


@dataclass(frozen=True, slots=True)
class Trickle:
    """The body is sent in pieces of `piece_bytes`, with a pause of `seconds` before each, until the event is set."""

    piece_bytes: int
    seconds: float
    until: asyncio.Event | None = None


@dataclass(frozen=True, slots=True)
class FailBefore:
    """The request gets an error status and has no effect."""

    status: int = 502
    message: str = "Simulated failure"


@dataclass(frozen=True, slots=True)
class FailAfter:
    """The request gets an error status but takes effect."""

    status: int = 502


@dataclass(frozen=True, slots=True)
class DropBefore:
    """The connection breaks without an answer, and the request has no effect."""


@dataclass(frozen=True, slots=True)
class DropAfter:
    """The connection breaks without an answer after `seconds`, but the request takes effect at once."""

    seconds: float = 0


@dataclass(frozen=True, slots=True)
class Garble:
    """The request takes effect, and the JSON of its answer is cut, as a proxy may do."""


@dataclass(frozen=True, slots=True)
class SecondaryRateLimit:
    """Too much content was created in too short a time; `retry_after` in seconds, None leaves the header out.

    GraphQL answers with status 200 or 403.
    """

    retry_after: int | None = 60
    status: int = 403


@dataclass(frozen=True, slots=True)
class PrimaryRateLimit:
    """The requests of this hour are used up; the limit resets in `reset_after` seconds."""

    reset_after: int = 60
    status: int = 403


@dataclass(frozen=True, slots=True)
class GraphQLError:
    """An answer with status 200 that has an error and no data; with a `path`, what that names is null and the rest is
    there.
    """

    message: str = "Something went wrong while executing your query. This may be the result of a timeout."
    type: str | None = None
    path: tuple[str | int, ...] = ()


Fault = (
    Latency
    | Held
    | Trickle
    | FailBefore
    | FailAfter
    | DropBefore
    | DropAfter
    | Garble
    | SecondaryRateLimit
    | PrimaryRateLimit
    | GraphQLError
)


@dataclass(slots=True)
class _Rule:
    fault: Fault
    method: str
    path: str
    left: int | None

    def matches(self, method: str, path: str) -> bool:
        return self.method in ("*", method) and fnmatchcase(path, self.path)


@dataclass(slots=True)
class _WebhookRule:
    event: str
    action: str | None
    left: int | None

    def matches(self, event: str, action: str | None) -> bool:
        return fnmatchcase(event, self.event) and self.action in (None, action)


class Faults:
    """The faults of one simulated GitHub."""

    def __init__(self, release_held: Callable[[], None]) -> None:
        self._rules: list[_Rule] = []
        self._doubled: list[_WebhookRule] = []
        self._held: list[_WebhookRule] = []
        self._release_held = release_held

    def add(self, fault: Fault, *, method: str = "*", path: str = "*", times: int | None = 1) -> None:
        """Apply the fault to the next `times` requests (None: all) of this method whose path matches the glob."""
        self._rules.append(_Rule(fault, method.upper(), path, times))

    def double_webhooks(self, event: str = "*", action: str | None = None, times: int | None = 1) -> None:
        """Send matching webhooks twice: the same payload under two GUIDs."""
        self._doubled.append(_WebhookRule(event, action, times))

    def hold_webhooks(self, event: str = "*", action: str | None = None, times: int | None = 1) -> None:
        """Hold matching webhooks until `release()`, so that later ones overtake them."""
        self._held.append(_WebhookRule(event, action, times))

    def release(self) -> None:
        """Send the held webhooks."""
        self._release_held()

    def clear(self) -> None:
        """Switch everything off; held webhooks stay held until `release()`."""
        self._rules.clear()
        self._doubled.clear()
        self._held.clear()

    def for_request(self, method: str, path: str) -> Fault | None:
        """Return the fault for this request and count it as used."""
        rule = next((rule for rule in self._rules if rule.matches(method, path)), None)
        if rule is None:
            return None
        if _used_up(rule):
            self._rules.remove(rule)
        return rule.fault

    def doubles(self, event: str, action: str | None) -> bool:
        """Return whether a rule doubles this webhook, and count the rule as used."""
        return _take(self._doubled, event, action)

    def holds(self, event: str, action: str | None) -> bool:
        """Return whether a rule holds this webhook, and count the rule as used."""
        return _take(self._held, event, action)


def _take(rules: list[_WebhookRule], event: str, action: str | None) -> bool:
    rule = next((rule for rule in rules if rule.matches(event, action)), None)
    if rule is None:
        return False
    if _used_up(rule):
        rules.remove(rule)
    return True


def _used_up(rule: _Rule | _WebhookRule) -> bool:
    if rule.left is None:
        return False
    rule.left -= 1
    return rule.left == 0
