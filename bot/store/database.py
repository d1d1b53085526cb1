"""The pool of connections to Postgres, its errors, and values that several tables share."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import NoneType
from typing import Any, TypeAlias, TypeVar, assert_never

import asyncpg
import structlog

from bot.model import DetachedHead, HeadBranch, IssueBranch, Repository, Start, WorktreeRow
from bot.redaction import Redactor

Connection: TypeAlias = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy
Pool: TypeAlias = asyncpg.Pool
T = TypeVar("T")

# https://www.postgresql.org/docs/current/errcodes-appendix.html
TRANSIENT_SQLSTATES = (
    "08",  # connection
    "25006",  # read-only transaction: a fail-over, or a full disk
    "25P03",  # idle in a transaction for too long: this process was suspended
    "28",  # login refused: the password is being changed
    "3D000",  # no such database: it is being replaced
    "40",  # serialization failure, deadlock
    "53",  # out of disk, memory or connections
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

CONNECT_TIMEOUT_SECONDS = 5.0
APPLICATION = "threadtree"
"""The name of our sessions in Postgres."""
IDLE_IN_TRANSACTION = "15s"
"""After so long Postgres ends the transaction of a suspended process: others wait for its locks."""
IDLE_WITH_A_LOCK = "75s"
"""And after so long its session, where that holds a lock. A process that lives waits for GitHub for at most 60 s."""
MOST_BEATEN = 3
"""How often in a row another transaction may write a unique key first; after that it is a bug."""
_log = structlog.get_logger()


async def again_if_beaten(work: Callable[[], Awaitable[T]]) -> T:
    """Return what `work` returns, and do it again where another transaction wrote a unique key before it.

    `work` is a whole transaction, which then sees the other one's row. Raises UniqueViolationError after MOST_BEATEN.
    """
    for _ in range(MOST_BEATEN):
        try:
            return await work()
        except asyncpg.UniqueViolationError as beaten:
            _log.info("beaten-to-a-key", key=beaten.constraint_name)
    return await work()


def _clean_connection(redactor: Redactor) -> type[asyncpg.Connection]:
    """Return the class of connections through which no known secret enters a row, and only text that can be stored."""

    def storable(text: str) -> str:
        # Postgres stores no NUL, UTF-8 has no surrogates.
        return text.encode(errors="replace").decode().replace("\0", "")

    def clean(value: Any) -> Any:
        match value:
            case str():
                return redactor.redact_known(storable(value))
            case list() if {*map(type, value)} <= {str, NoneType}:
                # A column of many rows: one search costs less than one for each.
                whole = "\n".join(filter(None, value))
                if redactor.knows_nothing_of(whole) and storable(whole) == whole:
                    return value
                return [clean(item) for item in value]
            case list():
                return [clean(item) for item in value]
            case _:
                return value

    class CleanConnection(asyncpg.Connection):
        _may_hold_a_lock = False

        def get_reset_query(self) -> str:
            # A round trip at each return to the pool. Without a lock nothing is set that it would reset.
            reset = super().get_reset_query() if self._may_hold_a_lock else ""
            self._may_hold_a_lock = False
            return reset

        async def execute(self, query: str, *args: Any, timeout: float | None = None) -> Any:
            return await super().execute(query, *map(clean, args), timeout=timeout)

        async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
            return await super().fetch(query, *map(clean, args), **options)

        async def fetchrow(self, query: str, *args: Any, **options: Any) -> Any:
            return await super().fetchrow(query, *map(clean, args), **options)

        async def fetchval(self, query: str, *args: Any, column: int = 0, timeout: float | None = None) -> Any:
            if "advisory_lock(" in query:  # of the connection; those of a transaction are "advisory_xact_lock("
                self._may_hold_a_lock = True
                await super().execute(f"set idle_session_timeout = '{IDLE_WITH_A_LOCK}'")
            return await super().fetchval(query, *map(clean, args), column=column, timeout=timeout)

    return CleanConnection


@asynccontextmanager
async def database(
    dsn: str, *, size: int = 10, patience_seconds: float = 30.0, redactor: Redactor | None = None
) -> AsyncIterator[Pool]:
    """Open a pool; wait up to `patience_seconds` for a Postgres that is starting, then raise its error.

    All text that is written is cleaned: it can be stored, and holds no secret that the `redactor` knows.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_seconds
    pool, attempts = None, 0
    while pool is None:
        try:
            pool = await asyncpg.create_pool(
                dsn,
                min_size=1,
                max_size=size,
                timeout=CONNECT_TIMEOUT_SECONDS,
                command_timeout=60,
                connection_class=_clean_connection(redactor or Redactor()),
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
                _log.warning("waiting-for-database", problem=type(problem).__name__, seconds=patience_seconds)
            attempts += 1
            await asyncio.sleep(0.5)
    try:
        yield pool
    finally:
        try:
            await asyncio.wait_for(pool.close(), timeout=10)
        except TimeoutError:
            pool.terminate()


def repository_of(row: asyncpg.Record) -> Repository:
    """Return the repository in a row that holds the columns of `codebases`."""
    return Repository(
        row["platform"],
        row["repository_id"],
        row["owner"],
        row["name"],
        row["default_branch"],
        row["installation_id"],
    )


def worktree_of(row: asyncpg.Record) -> WorktreeRow:
    """Return the worktree in a row that holds the columns of the view `worktree_rows`."""
    return WorktreeRow(
        id=row["worktree_id"],
        repository=repository_of(row),
        folder=row["folder"],
        node=row["node"],
        path=row["path"],
        state=row["worktree_state"],
        branch=row["branch"],
        base_branch=row["base_branch"],
        owner=row["start_number"],
        start=_start_of(row),
        conversations=tuple(row["conversations"]),
        created_at=row["worktree_created_at"],
        updated_at=row["worktree_updated_at"],
    )


def _start_of(row: asyncpg.Record) -> Start:
    """Return the start of a worktree; the table's constraints define which columns each kind has."""
    match row["start_kind"]:
        case "issue":
            return IssueBranch(row["start_number"])
        case "head":
            return HeadBranch(row["start_ref"], row["start_sha"])
        case "detached":
            return DetachedHead(row["start_sha"], row["start_ref"])
        case kind:
            raise ValueError(f"{kind!r} is no kind of start")


def start_columns(start: Start) -> tuple[str, str | None, str | None]:
    """Return the columns `start_kind`, `start_ref` and `start_sha` of a worktree."""
    match start:
        case IssueBranch():
            return "issue", None, None
        case HeadBranch(branch, sha):
            return "head", branch, sha
        case DetachedHead(sha, ref_to_fetch):
            return "detached", ref_to_fetch, sha
        case _:
            assert_never(start)
