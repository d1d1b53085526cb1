"""A call of the API: checked before it reaches a handler; whatever is wrong with it is a 4xx with one sentence."""

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Literal, TypeAlias, TypeVar, get_args

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import ErrorDetails

from bot.care.asked import REPOSITORY, Asked, Id, Repository
from bot.operator.api import audit_rows as audit
from bot.operator.api.rows import Row
from bot.store.database import DATABASE_AWAY, Connection, Pool
from bot.store.scope import EVERYTHING, Scope
from bot.turn.request_rows import Channel

CALLS_AT_ONCE: Final = 2
"""The pool is there for deliveries first."""
CALL_SECONDS: Final = 5.0
UNANSWERED: Final[tuple[type[BaseException], ...]] = (TimeoutError, *DATABASE_AWAY)
MOST_ROWS: Final = 200
ONLY_OPERATORS: Final = "Only operators may do this (DASHBOARD_OPERATORS)."
WITH_TOKEN: Final = "admin-token"  # noqa: S105 - no secret
"""The person of a call that shows nothing but the ADMIN_TOKEN."""
THREAD: Final = re.compile(r"(?P<owner>[A-Za-z0-9_-]{1,100})/(?P<name>[A-Za-z0-9._-]{1,100})#(?P<number>[0-9]{1,9})")

S = TypeVar("S")


class ById(Asked):
    """One row, by its id."""

    id: Id


class ByGuid(Asked):
    """One delivery."""

    guid: Annotated[str, Field(pattern="^[A-Za-z0-9-]{1,64}$")]


class PageQuery(Asked):
    """A page of a list."""

    after: Annotated[Id | None, Field(description="`next` of the page before")] = None
    limit: Annotated[int, Field(ge=1, le=MOST_ROWS, description=f"the rows of a page, 1 to {MOST_ROWS}")] = 50
    repo: Repository = None


class ListQuery(PageQuery, Generic[S]):
    """A page of those in one of the states S."""

    state: Annotated[S | None, Field(description="the state of all of them")] = None

    @classmethod
    def states(cls) -> tuple[str, ...]:
        return get_args(cls.__pydantic_generic_metadata__["args"][0])


class TurnsQuery(ListQuery[S], Generic[S]):
    """A page of the requests that match a search."""

    search: Annotated[
        str | None, Field(max_length=200, description="words of the request or the thread, a login, or owner/name#42")
    ] = None


class ByStep(ById):
    """One step of a turn."""

    place: Id


class AuditQuery(PageQuery):
    """A page of what people did."""

    person: Annotated[str | None, Field(max_length=100, description="a login, admin-token or command line (USER)")] = (
        None
    )
    since: Annotated[
        datetime | None,
        AfterValidator(lambda at: at if at is None or at.tzinfo else at.replace(tzinfo=UTC)),
        Field(description="a day or a time, in UTC where it names no other: 2026-05-01"),
    ] = None


class CostsQuery(Asked):
    """The costs of the last days."""

    days: Annotated[int, Field(ge=1, le=366, description="the days up to today, 1 to 366")] = 30
    by: Annotated[Literal["repository", "person"], Field(description="whose sums: each repository's or person's")] = (
        "repository"
    )
    repo: Repository = None


class NewWorktree(Asked):
    """The conversation that is to get a worktree."""

    conversation: Annotated[
        str,
        Field(
            pattern=f"^{REPOSITORY}#[0-9]{{1,9}}$",
            title="Of the conversation",
            description="an issue or a pull request, as owner/repo#42",
        ),
    ]


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
    sessions_kept_for: timedelta
    clock: Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and by which way. An operator sees everything; all others see their scope and change nothing."""

    channel: Channel
    person: str
    scope: Scope = EVERYTHING

    @property
    def is_operator(self) -> bool:
        return self.scope.repositories is None

    @property
    def login(self) -> str | None:
        """Return the login of an operator who signed in with GitHub; None of whoever has the token or the machine."""
        return self.person if self.channel == "dashboard" and self.person != WITH_TOKEN else None


STRANGER: Final = Caller("dashboard", "", Scope("", ()))


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is carried out."""

    connection: Connection
    ctx: ApiContext
    caller: Caller


@dataclass(frozen=True, slots=True)
class Words:
    """An endpoint in words; all but `title` are a change's, for its page and its command.

    What is asked stands in them, and in `asked` the `answer`.
    """

    verb: str = ""
    title: str = ""
    button: str = ""
    consequence: str = ""
    asked: str = ""
    is_dangerous: bool = field(default=False, kw_only=True)


Method = Literal["GET", "POST", "DELETE"]
A = TypeVar("A", bound=Asked)
R = TypeVar("R", bound=Row)


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[A, R]):
    """One method on one path: what it takes, what it answers, and its words."""

    method: Method
    path: str
    words: Words
    status: int
    handler: "Handler[A, R]"
    asks: type[A]
    answer: type[R]

    def parse(self, path: Mapping[str, str], given: Mapping[str, Any]) -> A:
        """Return what is asked, by the names in the path and by its query or body. Raises CallError."""
        for name in path.keys() & given.keys():
            raise CallError(400, f"There is no parameter {name!r} here.")
        try:
            return self.asks.model_validate({**given, **path})
        except ValidationError as problem:
            raise self._refusal(problem.errors()[0], path) from None

    def _refusal(self, problem: ErrorDetails, path: Mapping[str, str]) -> CallError:
        name, value = str(problem["loc"][0]), str(problem["input"])[:64]
        if name in path:
            return CallError(404, f"There is nothing with the {name} {value!r}.")
        if problem["type"] == "extra_forbidden":
            return CallError(400, f"There is no parameter {name[:64]!r} here.")
        choice = problem.get("ctx", {}).get("expected")
        wanted = f"one of {choice}" if choice else self.asks.model_fields[name].description
        if problem["type"] == "missing":
            return CallError(400, f"{name} is missing; give {wanted}.")
        return CallError(400, f"{name} cannot be {value!r}; give {wanted}.")


Handler: TypeAlias = Callable[[Call, A], Awaitable[R]]


def get(path: str, title: str) -> Callable[[Handler[A, R]], Endpoint[A, R]]:
    """Make an endpoint that reads."""
    return _endpoint("GET", path, Words(title=title), 200)


def change(
    method: Method, path: str, *words: str, status: int = 202, is_dangerous: bool = False
) -> Callable[[Handler[A, R]], Endpoint[A, R]]:
    """Make an endpoint that changes something; the `words` are those of `Words`."""
    return _endpoint(method, path, Words(*words, is_dangerous=is_dangerous), status)


def _endpoint(method: Method, path: str, words: Words, status: int) -> Callable[[Handler[A, R]], Endpoint[A, R]]:
    """Make an endpoint of a handler: what it takes and answers are its annotations."""

    def made(handler: Handler[A, R]) -> Endpoint[A, R]:
        _, asked, answer = inspect.get_annotations(handler).values()
        return Endpoint(method, path, words, status, handler, asked, answer)

    return made


async def answered(call: Call, endpoint: Endpoint[A, R], asked: A) -> R:
    """Return the endpoint's answer. A change is recorded with its person, in its own transaction. Raises CallError."""
    if endpoint.method == "GET":
        return await endpoint.handler(call, asked)
    async with call.connection.transaction():
        answer = await endpoint.handler(call, asked)
        if not getattr(asked, "dry_run", False):
            await audit.record(call.connection, await _entry(call, endpoint, asked, answer))
    return answer


async def _entry(call: Call, change: Endpoint[A, R], asked: A, answer: R) -> audit.Entry:
    kind, caller, codebase = change.path.split("/")[1], call.caller, getattr(asked, "repo", None)
    target = kind
    match asked:
        case NewWorktree(conversation=target):
            codebase = target.partition("#")[0]
        case ById(id=key) | ByGuid(guid=key):
            one = "delivery" if kind == "deliveries" else kind.removesuffix("s")
            target, codebase = f"{one} {key}", await audit.codebase_of(call.connection, kind, key)
        case _:  # of several
            pass
    details = asked.model_dump_json(exclude_defaults=True, exclude={"id", "guid", "conversation"})
    done = answer.model_dump()
    return audit.Entry(
        *(caller.person, caller.channel, change.words.verb),
        *(target, codebase, details),
        turn=done.get("turn") if "operation" in done else None,
        operations=tuple(done.get("operations", filter(None, [done.get("operation")]))),
        delivery=done.get("delivery"),
        outcome=None if done.keys() & {"operation", "operations", "delivery"} else getattr(answer, "words", "done"),
    )


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

    async def run(self, endpoint: Endpoint[A, R], asked: A, caller: Caller) -> R:
        """Return the endpoint's answer. Raises CallError, or one of UNANSWERED."""
        if endpoint.method != "GET" and not caller.is_operator:
            raise CallError(403, ONLY_OPERATORS)
        async with self.connection() as connection:
            return await answered(Call(connection, self.ctx, caller), endpoint, asked)
