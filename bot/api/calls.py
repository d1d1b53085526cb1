"""A call of the API: checked before it reaches a handler; whatever is wrong with it is a 4xx with one sentence."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import orjson
import structlog

from bot.api.schemas import Schema
from bot.store.database import DATABASE_AWAY, Connection, Pool
from bot.store.operations import Channel

if TYPE_CHECKING:  # the command line, which makes calls too, has no use for it
    from starlette.requests import Request

CALLS_AT_ONCE: Final = 2
"""The pool is there for deliveries first."""
CALL_SECONDS: Final = 5.0
UNANSWERED: Final[tuple[type[BaseException], ...]] = (TimeoutError, *DATABASE_AWAY)
MOST_ROWS: Final = 200
USUAL_ROWS: Final = 50
MOST_DAYS: Final = 366
USUAL_DAYS: Final = 30
LIST_QUERY: Final = ("after", "limit", "repo", "state")
LARGEST_BODY_BYTES: Final = 4096
THREAD: Final = re.compile(r"(?P<owner>[A-Za-z0-9_-]{1,100})/(?P<name>[A-Za-z0-9._-]{1,100})#(?P<number>[0-9]{1,9})")

_log = structlog.get_logger()
_PATTERNS: Final = {
    # Whole ids of Postgres' bigint have up to 19 digits; ours stay far below.
    "id": re.compile(r"[0-9]{1,18}"),
    "guid": re.compile(r"[A-Za-z0-9-]{1,64}"),
    "after": re.compile(r"[0-9]{1,18}"),
    "limit": re.compile(r"[0-9]{1,6}"),
    "days": re.compile(r"[0-9]{1,6}"),
    "repo": re.compile(r"[A-Za-z0-9_-]{1,100}/[A-Za-z0-9._-]{1,100}"),
}


class CallError(Exception):
    """The caller can correct this; `sentence` says what is wrong."""

    def __init__(self, status: int, sentence: str) -> None:
        self.status = status
        self.sentence = sentence
        super().__init__(sentence)


@dataclass(frozen=True, slots=True)
class ApiContext:
    """What handlers need besides rows. Of worktrees, only directories in `data_dir` are seen."""

    platform: str
    server_url: str
    data_dir: Path
    rescues_kept_for: timedelta
    clock: Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked, checked. `path` has the names in the path, `body` what was sent as JSON."""

    path: Mapping[str, str] = field(default_factory=dict)
    limit: int = USUAL_ROWS
    after: int | None = None
    repository: str | None = None
    state: str | None = None
    days: int = USUAL_DAYS
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is carried out."""

    connection: Connection
    ctx: ApiContext
    asked: Asked
    channel: Channel

    @property
    def id(self) -> int:
        return int(self.asked.path["id"])


Handler: TypeAlias = Callable[[Call], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method on one path: what it takes, what it answers, and its words in the OpenAPI document."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    summary: str
    handler: Handler
    answer: Schema
    status: int = 200
    query: tuple[str, ...] = ()
    """The parameters of the query that it knows."""
    states: tuple[str, ...] = ()
    """The values of `?state=`."""
    body: Mapping[str, str] = field(default_factory=dict)
    """The fields of the JSON body, each a text, with what they say."""


class Calls:
    """What carries calls out, for the API and the dashboard together at most CALLS_AT_ONCE at a time."""

    def __init__(self, pool: Pool, ctx: ApiContext) -> None:
        self._pool = pool
        self.ctx = ctx
        self._free = asyncio.Semaphore(CALLS_AT_ONCE)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        async with self._free, self._pool.acquire() as connection:
            yield connection

    async def run(self, endpoint: Endpoint, asked: Asked, channel: Channel) -> object:
        """Return the endpoint's answer. Raises CallError, or one of UNANSWERED."""
        async with self.connection() as connection:
            answer = await endpoint.handler(Call(connection, self.ctx, asked, channel))
        if endpoint.method != "GET":
            _log.info(
                "operator-asked",
                by=channel,
                method=endpoint.method,
                path=endpoint.path.format(**asked.path),
                answer=answer,
            )
        return answer


async def check(endpoint: Endpoint, request: "Request") -> Asked:
    """Return what is asked. Raises CallError."""
    asked = check_address(endpoint, request.path_params, request.query_params.multi_items())
    return replace(asked, body=await _body(endpoint, request))


def check_address(endpoint: Endpoint, path: Mapping[str, str], items: Iterable[tuple[str, str]]) -> Asked:
    """Return what the address asks, from the names in its path and the items of its query. Raises CallError."""
    for name, value in path.items():
        if not _PATTERNS[name].fullmatch(value):
            raise CallError(404, f"There is nothing with the {name} {value[:64]!r}.")
    query = _query(endpoint, items)
    return Asked(
        path,
        limit=int(query.get("limit", USUAL_ROWS)),
        after=int(query["after"]) if "after" in query else None,
        repository=query.get("repo"),
        state=query.get("state"),
        days=int(query.get("days", USUAL_DAYS)),
    )


def _query(endpoint: Endpoint, items: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    query: dict[str, str] = {}
    for name, value in items:
        if name not in endpoint.query:
            raise CallError(400, f"There is no parameter {name[:64]!r} here.")
        if name in query:
            raise CallError(400, f"{name} is given twice.")
        query[name] = value
    for name, value in query.items():
        if name == "state":
            if value not in endpoint.states:
                raise CallError(400, f"{value[:64]!r} is no state; choose one of {', '.join(endpoint.states)}.")
        elif not _PATTERNS[name].fullmatch(value):
            raise CallError(400, f"{name} cannot be {value[:64]!r}.")
    if not 1 <= int(query.get("limit", 1)) <= MOST_ROWS:
        raise CallError(400, f"limit must be between 1 and {MOST_ROWS}.")
    if not 1 <= int(query.get("days", 1)) <= MOST_DAYS:
        raise CallError(400, f"days must be between 1 and {MOST_DAYS}.")
    return query


async def read_body(request: "Request") -> bytes:
    """Return the body of a request. Raises CallError where it is large."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY_BYTES:
            raise CallError(413, f"The body is larger than {LARGEST_BODY_BYTES} bytes.")
    return body


async def _body(endpoint: Endpoint, request: "Request") -> Mapping[str, Any]:
    """Return the body: an object with exactly the endpoint's fields. One that takes none may get none, or `{}`."""
    body = await read_body(request)
    if not body and not endpoint.body:
        return {}
    try:
        given = orjson.loads(body)
    except ValueError:
        raise CallError(400, "The body is not JSON.") from None
    if not isinstance(given, dict) or given.keys() != endpoint.body.keys():
        raise CallError(400, f"The body must be an object with the fields: {', '.join(endpoint.body) or 'none'}.")
    if not all(isinstance(value, str) for value in given.values()):
        raise CallError(400, "Each field of the body must be a text.")
    return given
