"""Which errors of Postgres are temporary, and which are bugs; how a row becomes a value."""

from dataclasses import dataclass
from pathlib import Path

import asyncpg
import psycopg
import pytest
from procrastinate.exceptions import ConnectorException

from bot.model import HeadBranch, IssueBranch, Repository, Start, Target, ThreadRef
from bot.store.database import DATABASE_AWAY, connect, database, read
from bot.store.failures import is_transient
from bot.turn.waiting import passing


@pytest.mark.parametrize(
    ("sqlstate", "error"),
    [
        *(("08006", asyncpg.ConnectionFailureError), ("0A000", asyncpg.InvalidCachedStatementError)),
        *(("25006", asyncpg.ReadOnlySQLTransactionError), ("25P03", asyncpg.IdleInTransactionSessionTimeoutError)),
        *(("28P01", asyncpg.InvalidPasswordError), ("3D000", asyncpg.InvalidCatalogNameError)),
        *(("40001", asyncpg.SerializationError), ("40P01", asyncpg.DeadlockDetectedError)),
        *(("53100", asyncpg.DiskFullError), ("53300", asyncpg.TooManyConnectionsError)),
        *(("54000", asyncpg.ProgramLimitExceededError), ("55000", asyncpg.ObjectNotInPrerequisiteStateError)),
        *(("55006", asyncpg.ObjectInUseError), ("55P03", asyncpg.LockNotAvailableError)),
        *(("57014", asyncpg.QueryCanceledError), ("57P01", asyncpg.AdminShutdownError)),
        *(("57P03", asyncpg.CannotConnectNowError),),
        *(("58030", asyncpg.PostgresIOError), ("XX000", asyncpg.InternalServerError)),
    ],
)
def test_an_error_that_passes_is_tried_again(sqlstate: str, error: type[asyncpg.PostgresError]) -> None:
    assert error.sqlstate == sqlstate
    assert is_transient(error())
    assert issubclass(error, DATABASE_AWAY)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.DivisionByZeroError,  # 22
        asyncpg.UniqueViolationError,  # 23
        asyncpg.UndefinedColumnError,  # 42
        asyncpg.InFailedSQLTransactionError,  # 25, but not a read-only transaction
    ],
)
def test_a_bug_is_not_tried_again(error: type[asyncpg.PostgresError]) -> None:
    assert not is_transient(error())
    assert not issubclass(error, DATABASE_AWAY)


@pytest.mark.parametrize("error", [ConnectionResetError(), TimeoutError(), asyncpg.InterfaceError("closed")])
def test_a_lost_connection_is_tried_again(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    ("cause", "passes"),
    [
        (psycopg.OperationalError("no connection"), True),
        (psycopg.errors.AdminShutdown(), True),
        (psycopg.errors.ReadOnlySqlTransaction(), True),
        (psycopg.errors.UndefinedColumn(), False),
    ],
)
def test_errors_of_the_job_engine_are_told_apart_by_their_cause(cause: psycopg.Error, *, passes: bool) -> None:
    error = ConnectorException()
    error.__cause__ = cause
    assert is_transient(error) == passes


async def test_a_socket_whose_file_is_gone_is_a_database_that_is_away(tmp_path: Path) -> None:
    dsn = f"postgresql://bot@/bot?host={tmp_path}"
    with pytest.raises(ConnectionError, match="No such file") as alone:
        await connect(dsn)
    with pytest.raises(ConnectionError, match="No such file") as of_pool:
        async with database(dsn, patience_seconds=0):
            pass
    assert [passing(error.value) for error in (alone, of_pool)] == ["database-away"] * 2


@pytest.mark.parametrize("error", [KeyError("x"), FileNotFoundError(2, "No such file or directory"), OSError("x")])
def test_other_errors_are_bugs(error: Exception) -> None:
    assert not is_transient(error)


@dataclass(frozen=True)
class Asked:
    number: int
    notices: tuple[str, ...]
    thread: ThreadRef
    target: Target | None
    start: Start


ROW = {
    "number": 42,
    "notices": ["one", "two"],
    "platform": "github.com",
    "repository_id": 7,
    "owner": "octo",
    "name": "demo",
    "default_branch": None,
    "installation_id": None,
    "conversation_id": 3,
    "source_kind": "comment",
    "source_id": 5,
    "start_kind": "head",
    "start_number": 42,
    "start_ref": "topic",
    "start_sha": None,
    "unasked": "is passed over",
}


def test_a_row_is_read_by_the_names_of_the_fields_also_of_nested_values() -> None:
    thread = ThreadRef(Repository("github.com", 7, "octo", "demo"), 3)
    assert read(Asked, ROW) == Asked(42, ("one", "two"), thread, Target("comment", 5), HeadBranch("topic"))


def test_a_nested_value_may_be_none_and_an_array_null() -> None:
    of_issue = {"start_kind": "issue", "start_ref": "bot-issue-42"}
    row = ROW | of_issue | {"source_kind": None, "source_id": None, "notices": None}
    asked = read(Asked, row)
    assert (asked.target, asked.notices, asked.start) == (None, (), IssueBranch(42, "bot-"))
    assert read(Asked, row | {"start_ref": None}).start == IssueBranch(42, "threadtree/"), "a row of release 0.2"


def test_a_missing_column_is_a_bug() -> None:
    with pytest.raises(KeyError, match="number"):
        read(Asked, {name: value for name, value in ROW.items() if name != "number"})
