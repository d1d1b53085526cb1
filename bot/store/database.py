"""The pool of connections to Postgres, its errors, and how rows become values."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import cache, cached_property
from inspect import signature
from operator import itemgetter
from types import NoneType, UnionType
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar, assert_never, cast, get_args, get_origin, get_type_hints

import asyncpg
import orjson
import structlog

from bot.ask import Ask, of_json, to_json
from bot.json_values import storable
from bot.model import Conversation, DetachedHead, HeadBranch, IssueBranch, Repository, Start, Target, WorktreeRow
from bot.redaction import Redactor

Connection: TypeAlias = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy
Pool: TypeAlias = asyncpg.Pool
T = TypeVar("T")
P = ParamSpec("P")
Row: TypeAlias = Mapping[str, Any]

# https://www.postgresql.org/docs/current/errcodes-appendix.html
TRANSIENT_SQLSTATES = (
    "08",  # connection
    "25006",  # read-only transaction: a fail-over, or a full disk
    "25P03",  # idle in a transaction for too long: this process was suspended
    "28",  # login refused: the password is being changed
    "3D000",  # no such database: it is being replaced
    "40",  # serialization failure, deadlock
    "53",  # out of disk, memory or connections
    "54",  # over a limit, such as the queue of notifications, which empties again
    "55",  # in use, locked, or closed for maintenance
    "57",  # shutdown, cancelled statement
    "58",  # system error outside Postgres
    "XX",  # internal error
)
"""Classes and codes of errors after which the same statement may succeed later. All others, such as 22, 23 and 42, are
bugs of ours.
"""

DATABASE_AWAY: tuple[type[BaseException], ...] = (
    *(
        error
        for error in vars(asyncpg.exceptions).values()
        if isinstance(error, type) and str(getattr(error, "sqlstate", None)).startswith(TRANSIENT_SQLSTATES)
    ),
    asyncpg.InvalidCachedStatementError,  # once for a statement, after a migration under this process
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)
"""Exceptions of asyncpg when Postgres cannot be reached or cannot work now: try again later."""

_WRONG_ADDRESS = (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError)
"""At the start these are mistakes in DATABASE_URL; later they pass."""

_CONNECT_TIMEOUT_SECONDS = 5.0
_CLOSE_SECONDS = 2.0
_STATEMENT_SECONDS = 60.0
"""After so long without an answer, or after those of the statement, the connections of its pool count as silent."""
APPLICATION = "threadtree"
"""The name of our sessions in Postgres."""
IDLE_IN_TRANSACTION = "15s"
"""After so long Postgres ends the transaction of a suspended process: others wait for its locks."""
IDLE_WITH_A_LOCK = "75s"
"""And after so long its session, where that holds a lock. A process that lives waits for GitHub for at most 60 s."""
UNIQUE_VIOLATION_RETRIES = 3
"""How often in a row another transaction may write a unique key first; after that it is a bug."""
_log = structlog.get_logger()


async def retry_on_unique_violation(transaction: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what the transaction returns; run it again where another one wrote a unique key before it.

    It then sees the other one's row. Raises UniqueViolationError after UNIQUE_VIOLATION_RETRIES.
    """
    for _ in range(UNIQUE_VIOLATION_RETRIES):
        try:
            return await transaction(*args, **kwargs)
        except asyncpg.UniqueViolationError as violation:
            _log.info("unique-violation-retried", key=violation.constraint_name)
    return await transaction(*args, **kwargs)


class Json(str):
    """JSON, in which a secret can be written with escapes: its texts are cleaned one by one."""

    __slots__ = ()


def _clean_connection(redactor: Redactor, silent: Callable[[], Awaitable[None]]) -> type[asyncpg.Connection]:
    """Return the class of connections through which no known secret enters a row, and only text that can be stored.

    `silent` is called where one does not answer in time: the others may not either.
    """

    def clean(value: Any) -> Any:
        match value:
            case Json():
                return orjson.dumps(clean(orjson.loads(str(value)))).decode()
            case str():
                return redactor.redact_known(storable(value))
            case list() | tuple() if {*map(type, value)} <= {str, NoneType}:
                # A column of many rows: one search costs less than one for each.
                whole = "\n".join(filter(None, value))
                if redactor.knows_nothing_of(whole) and storable(whole) == whole:
                    return value
                return [clean(item) for item in value]
            case list() | tuple():
                return [clean(item) for item in value]
            case dict():
                return {key: clean(item) for key, item in value.items()}
            case _:
                return value

    class CleanConnection(asyncpg.Connection):
        _may_hold_a_lock = False

        async def reset(self, *, timeout: float | None = None) -> None:
            if self.is_in_transaction():
                # Its COMMIT or ROLLBACK was cancelled, as when the process stops. asyncpg would log that as an error.
                await self.execute("rollback", timeout=timeout)
            await super().reset(timeout=timeout)

        async def close(self, *, timeout: float | None = None) -> None:
            # asyncpg's pool closes lost connections in a task, without a timeout, and ignores its error.
            with suppress(*DATABASE_AWAY):
                await super().close(timeout=timeout or _CLOSE_SECONDS)

        def get_reset_query(self) -> str:
            # A round trip at each return to the pool. Without a lock nothing is set that it would reset.
            reset = super().get_reset_query() if self._may_hold_a_lock else ""
            self._may_hold_a_lock = False
            return reset

        async def _answered(self, statement: Awaitable[Any]) -> Any:
            try:
                return await statement
            except TimeoutError:
                self.terminate()
                await silent()
                raise

        async def execute(self, query: str, *args: Any, timeout: float | None = None) -> Any:
            return await self._answered(super().execute(query, *map(clean, args), timeout=timeout))

        async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
            return await self._answered(super().fetch(query, *map(clean, args), **options))

        async def fetchrow(self, query: str, *args: Any, **options: Any) -> Any:
            return await self._answered(super().fetchrow(query, *map(clean, args), **options))

        async def fetchval(self, query: str, *args: Any, column: int = 0, timeout: float | None = None) -> Any:
            if "advisory_lock(" in query:  # of the connection; those of a transaction are "advisory_xact_lock("
                self._may_hold_a_lock = True
                await super().execute(f"set idle_session_timeout = '{IDLE_WITH_A_LOCK}'")
            value = super().fetchval(query, *map(clean, args), column=column, timeout=timeout)
            return await self._answered(value)

    return CleanConnection


async def connect(*dsn: str, **options: Any) -> asyncpg.Connection:
    """Connect to Postgres. Raises one of DATABASE_AWAY; where it cannot be reached, that is a ConnectionError.

    The file of the embedded database's socket is gone while that is down: its error is not told from one of our files.
    """
    try:
        connection: asyncpg.Connection = await asyncpg.connect(
            *dsn, timeout=_CONNECT_TIMEOUT_SECONDS, command_timeout=_STATEMENT_SECONDS, **options
        )
    except (ConnectionError, TimeoutError):
        raise
    except OSError as problem:
        raise ConnectionError(problem.errno, problem.strerror) from problem
    return connection


@asynccontextmanager
async def database(
    dsn: str, *, size: int = 10, patience_seconds: float = 30.0, redactor: Redactor | None = None
) -> AsyncIterator[Pool]:
    """Open a pool; wait up to `patience_seconds` for a Postgres that is starting, then raise its error.

    All text that is written is cleaned: it can be stored, and holds no secret that the `redactor` knows.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_seconds
    pool: Pool | None = None
    attempts = 0

    async def silent() -> None:
        if pool is not None:
            await pool.expire_connections()

    while pool is None:
        try:
            pool = await asyncpg.create_pool(
                dsn,
                min_size=1,
                max_size=size,
                connect=connect,
                connection_class=_clean_connection(redactor or Redactor(), silent),
                server_settings={
                    "application_name": APPLICATION,
                    # A 202 means that the delivery is on the disk, whatever the server's default is.
                    "synchronous_commit": "on",
                    "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION,
                },
            )
        except DATABASE_AWAY as problem:
            if loop.time() > deadline or isinstance(problem, _WRONG_ADDRESS):
                raise
            if not attempts:
                _log.warning("waiting-for-database", problem=type(problem).__name__)
            attempts += 1
            await asyncio.sleep(0.5)
    try:
        yield pool
    finally:
        try:
            async with asyncio.timeout(10):
                await pool.close()
        except TimeoutError:
            pool.terminate()


_COLUMNS: Mapping[type, Mapping[str, str]] = {
    Repository: {"id": "repository_id"},
    Target: {"kind": "source_kind", "id": "source_id"},
    Conversation: {"id": "conversation_id"},
    WorktreeRow: {
        "id": "worktree_id",
        "state": "worktree_state",
        "owner": "start_number",
        "created_at": "worktree_created_at",
        "updated_at": "worktree_updated_at",
    },
}
"""The columns of fields that are called otherwise there."""


def read(kind: type[T], row: Row) -> T:
    """Return the row as a dataclass: each field is the column of its name, or of `_COLUMNS`.

    A field that is a dataclass is read from the same row; where it may be None, it is if its first column is null.
    """
    value: T = _reader(kind)(row)
    return value


class Statement(Generic[P, T]):
    """A function that is one statement: `sql`, whose $1, $2, … are the parameters after the connection.

    In place of a connection it takes the pool, of which it uses one and gives it back.

    A parameter that is a dataclass stands for its `key`, or else for its fields; an `Ask` is one column of JSON. The
    declared result says what becomes of the rows: a list, a set, a tuple of any length, or the first one; each as in
    `read`, as a tuple or a dict, or its first column. In a tuple, values of several columns come last. A bool tells
    whether there is one, and what it holds. Without a row, `otherwise` is raised where it is given. `seconds`: raise
    TimeoutError where the answer takes longer.
    """

    def __init__(
        self,
        sql: str,
        declared: Callable[P, Awaitable[T]],
        otherwise: type[Exception] | None,
        seconds: float | None = None,
    ) -> None:
        self.sql = sql
        self._seconds = seconds
        self._declared = declared
        self._signature = signature(declared)
        self._otherwise = otherwise

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Execute the statement."""
        given = self._signature.bind(*args, **kwargs)
        given.apply_defaults()
        connection, *values = given.arguments.values()
        columns = [column for value in values for column in _columns_of(value)]
        return cast(T, await self._result(connection, columns))

    async def _result(self, connection: Connection, columns: list[Any]) -> object:
        returned, as_value = self._returned
        if returned is NoneType and self._otherwise is None:  # all rows: what is only locked is not asked for either
            await connection.execute(self.sql, *columns, timeout=self._seconds)
            return None
        if isinstance(returned, type) and issubclass(returned, (list, set, tuple)):
            return returned(map(as_value, await connection.fetch(self.sql, *columns, timeout=self._seconds)))
        row = await connection.fetchrow(self.sql, *columns, timeout=self._seconds)
        if row is None and self._otherwise is not None:
            raise self._otherwise
        if returned is bool:
            return row is not None and bool(row[0])
        return None if row is None else as_value(row)

    @cached_property
    def _returned(self) -> tuple[Any, Callable[[Row], Any]]:
        """What is returned, and what makes a value of a row."""
        returned = get_type_hints(self._declared)["return"]
        if get_origin(returned) is UnionType:
            returned = next(option for option in get_args(returned) if option is not NoneType)
        if returned is NoneType:
            return returned, lambda _: None
        several = get_origin(returned) in (list, set) or ... in get_args(returned)
        kind = get_args(returned)[0] if several else returned
        if is_dataclass(kind):
            as_value = _reader(kind)
        elif get_origin(kind) is tuple:
            as_value = _tuple_reader(get_args(kind))
        else:
            as_value = dict if get_origin(kind) is dict else itemgetter(0)
        return get_origin(returned) if several else returned, as_value


def _columns_of(value: Any) -> Iterable[Any]:
    if isinstance(value, Start):
        return _start_columns(value)
    if isinstance(value, Ask):
        return (Json(to_json(value)),)
    if not is_dataclass(value):
        return (value,)
    return getattr(value, "key", None) or [
        column for field in fields(value) for column in _columns_of(getattr(value, field.name))
    ]


def statement(
    sql: str, otherwise: type[Exception] | None = None, *, seconds: float | None = None
) -> Callable[[Callable[P, Awaitable[T]]], Statement[P, T]]:
    """Let the function, which has no body, execute `sql`. Raise `otherwise` where the statement finds no row."""
    return lambda declared: Statement(sql, declared, otherwise, seconds)


async def change(connection: Connection, statement: str, *args: object) -> int:
    """Execute the statement and return how many rows it changed, which Postgres says as in `DELETE 3`."""
    status: str = await connection.execute(statement, *args)
    return int(status.rpartition(" ")[2])


def _make_reader(kind: type) -> Callable[[Row], Any]:
    if kind is Ask:
        return lambda row: of_json(row["ask"])
    names, types = _COLUMNS.get(kind, {}), get_type_hints(kind)
    readers = {
        field.name: _field_reader(types[field.name], names.get(field.name, field.name)) for field in fields(kind)
    }
    return lambda row: kind(**{name: read_field(row) for name, read_field in readers.items()})


_reader: Callable[[Any], Callable[[Row], Any]] = cache(_make_reader)


def _tuple_reader(kinds: Iterable[Any]) -> Callable[[Row], Any]:
    parts = [_reader(kind) if is_dataclass(kind) else itemgetter(place) for place, kind in enumerate(kinds)]
    return lambda row: tuple(part(row) for part in parts)


def _field_reader(declared: Any, column: str) -> Callable[[Row], Any]:
    if declared == Start:
        return _start_of
    if get_origin(declared) is tuple:
        return lambda row: tuple(row[column] or ())
    if is_dataclass(declared):
        return _reader(declared)
    for option in get_args(declared) if get_origin(declared) is UnionType else ():
        if is_dataclass(option):
            own, read_option = _own_column(option), _reader(option)
            return lambda row: None if row[own] is None else read_option(row)
    return lambda row: row[column]


def _own_column(kind: Any) -> str:
    """Return the first column that belongs to no nested value."""
    if kind is Ask:
        return "ask"
    types = get_type_hints(kind)
    name = next(field.name for field in fields(kind) if not is_dataclass(types[field.name]))
    return _COLUMNS.get(kind, {}).get(name, name)


def _start_of(row: Row) -> Start:
    """Return the start of a worktree; the table's constraints define which columns each kind has."""
    match row["start_kind"]:
        case "issue":
            number, first = row["start_number"], row["start_ref"]  # release 0.2 named none
            return IssueBranch(number) if first is None else IssueBranch(number, first.removesuffix(f"issue-{number}"))
        case "head":
            return HeadBranch(row["start_ref"], row["start_sha"])
        case "detached":
            return DetachedHead(row["start_sha"], row["start_ref"])
        case kind:
            raise ValueError(f"{kind!r} is no kind of start")


def _start_columns(start: Start) -> tuple[str, str | None, str | None]:
    """Return the columns `start_kind`, `start_ref` and `start_sha` of a worktree."""
    match start:
        case IssueBranch():
            return "issue", start.first, None
        case HeadBranch(branch, sha):
            return "head", branch, sha
        case DetachedHead(sha, ref_to_fetch):
            return "detached", ref_to_fetch, sha
        case _:
            assert_never(start)
