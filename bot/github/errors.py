"""The errors of a request to GitHub, by what they mean for the caller, and how an answer is classified."""

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Literal

import orjson

Scope = Literal["request", "installation"]

# https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api#exceeding-the-rate-limit
SECONDARY_LIMIT_SECONDS = 60.0
# https://docs.github.com/graphql/overview/rate-limits-and-query-limits-for-the-graphql-api names the first;
# GitHub answers with the others as well (https://github.com/yanyongyu/githubkit/issues/271).
_LIMITS = {"RATE_LIMITED", "RATE_LIMIT", "graphql_rate_limit"}
_FORBIDDEN = {"FORBIDDEN", "INSUFFICIENT_SCOPES", "SAML"}
_UNPROCESSABLE = {"UNPROCESSABLE", "RESOURCE_LIMITS_EXCEEDED", "MAX_NODE_LIMIT_EXCEEDED"}
"""What fails again as it is: https://github.blog/changelog/2025-09-01-graphql-api-resource-limits"""
_LONGEST_MESSAGE = 300


class GitHubError(Exception):
    """One of those below; `bot.github` raises nothing else."""


@dataclass(eq=False)
class Transient(GitHubError):  # noqa: N818 - named for what it means
    """Worth trying again after `retry_after_seconds`: this request, or every request of this installation (`scope`).

    `may_have_happened`: the request may have reached GitHub, so the caller searches for a write before it repeats it.
    """

    scope: Scope
    retry_after_seconds: float | None
    detail: str
    may_have_happened: bool = True

    def __str__(self) -> str:
        return self.detail


class NotFound(GitHubError):  # noqa: N818 - named for what it means
    """It does not exist, or these credentials may not see it: GitHub does not say which."""


class Gone(NotFound):
    """It was deleted: https://docs.github.com/rest/issues/issues#get-an-issue"""


@dataclass(eq=False)
class Refused(GitHubError):  # noqa: N818 - named for what it means
    """GitHub refuses this request; repeating it changes nothing."""

    status: int
    message: str

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"


class Unauthenticated(GitHubError):  # noqa: N818 - named for what it means
    """GitHub does not accept the credentials."""


def classify(status: int, headers: Mapping[str, str], body: bytes) -> GitHubError:
    """Return the error for an answer outside 2xx; the names of `headers` are in lower case."""
    message = _message(body) or f"HTTP {status}"
    if status == 401:
        return Unauthenticated(message)
    if status in (404, 410):
        return NotFound(message) if status == 404 else Gone(message)
    if status == 422 and "submitted too quickly" in message.lower():
        # A limit on new content that GitHub does not document; it is for all that these credentials write.
        seconds = _retry_after_seconds(headers) or SECONDARY_LIMIT_SECONDS
        return Transient("installation", seconds, message, may_have_happened=False)
    if status in (403, 429) and (wait := _limit_seconds(status, headers, message)) is not None:
        return Transient("installation", wait, message, may_have_happened=False)
    if status == 408 or status >= 500:
        return Transient("request", _retry_after_seconds(headers), message)
    return Refused(status, message)


def classify_graphql(error: object, headers: Mapping[str, str]) -> GitHubError:
    """Return what one of the `errors` of a GraphQL answer means: what its sibling of REST means."""
    given = error if isinstance(error, dict) else {}
    message = str(given.get("message", "the query failed"))[:_LONGEST_MESSAGE]
    inner = given.get("extensions")
    kinds = {str(one.get(key)) for one in (given, inner) if isinstance(one, dict) for key in ("type", "code")}
    if "NOT_FOUND" in kinds:
        return NotFound(message)
    if kinds & _LIMITS:
        # That something is left says nothing: a query costs points.
        seconds = _retry_after_seconds(headers) or _reset_seconds(headers) or SECONDARY_LIMIT_SECONDS
        return Transient("installation", seconds, message, may_have_happened=False)
    if "submitted too quickly" in message.lower():
        return classify(422, headers, orjson.dumps({"message": message}))
    if (wait := _limit_seconds(200, headers, message)) is not None:
        return Transient("installation", wait, message, may_have_happened=False)
    if kinds & _FORBIDDEN:
        return Refused(403, message)
    return Refused(422, message) if kinds & _UNPROCESSABLE else Transient("request", None, message)


def _limit_seconds(status: int, headers: Mapping[str, str], message: str) -> float | None:
    """Return how long a rate limit asks to wait, None where the 403 is not a rate limit."""
    if (wait := _retry_after_seconds(headers)) is not None:
        return wait
    if headers.get("x-ratelimit-remaining") == "0":
        return _reset_seconds(headers) or SECONDARY_LIMIT_SECONDS
    limited = status == 429 or "rate limit" in message.lower() or "abuse detection" in message.lower()
    return SECONDARY_LIMIT_SECONDS if limited else None


def _retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    value = headers.get("retry-after")
    if value is None:
        return None
    return float(value) if value.isascii() and value.isdigit() else SECONDARY_LIMIT_SECONDS


def _reset_seconds(headers: Mapping[str, str]) -> float | None:
    """Return the time until the reset by GitHub's own clock, which may not agree with this machine's."""
    try:
        now = parsedate_to_datetime(headers["date"]).timestamp()
        # One second more: GitHub gives its times in whole seconds.
        return max(1.0, int(headers["x-ratelimit-reset"]) - now + 1)
    except (KeyError, ValueError):
        return None


def _message(body: bytes) -> str:
    """Return GitHub's message with the details of a 422 (https://docs.github.com/rest/using-the-rest-api/troubleshooting-the-rest-api)."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    if not isinstance(parsed, dict):
        return ""
    errors = parsed.get("errors")
    details = [
        str(error.get("message") or error.get("code") or "") if isinstance(error, dict) else str(error)
        for error in (errors if isinstance(errors, list) else [])
    ]
    return ": ".join(filter(None, [str(parsed.get("message", "")), ", ".join(filter(None, details))]))[
        :_LONGEST_MESSAGE
    ]
