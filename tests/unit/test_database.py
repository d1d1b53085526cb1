"""Which errors of Postgres are temporary, and which are bugs."""

import asyncpg
import psycopg
import pytest
from procrastinate.exceptions import ConnectorException

from bot.store.database import DATABASE_AWAY
from bot.store.failures import is_transient


@pytest.mark.parametrize(
    ("sqlstate", "error"),
    [
        ("08006", asyncpg.ConnectionFailureError),
        ("0A000", asyncpg.InvalidCachedStatementError),
        ("25006", asyncpg.ReadOnlySQLTransactionError),
        ("25P03", asyncpg.IdleInTransactionSessionTimeoutError),
        ("28P01", asyncpg.InvalidPasswordError),
        ("3D000", asyncpg.InvalidCatalogNameError),
        ("40001", asyncpg.SerializationError),
        ("40P01", asyncpg.DeadlockDetectedError),
        ("53100", asyncpg.DiskFullError),
        ("53300", asyncpg.TooManyConnectionsError),
        ("55000", asyncpg.ObjectNotInPrerequisiteStateError),
        ("55006", asyncpg.ObjectInUseError),
        ("55P03", asyncpg.LockNotAvailableError),
        ("57014", asyncpg.QueryCanceledError),
        ("57P01", asyncpg.AdminShutdownError),
        ("57P03", asyncpg.CannotConnectNowError),
        ("58030", asyncpg.PostgresIOError),
        ("XX000", asyncpg.InternalServerError),
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


@pytest.mark.parametrize("error", [KeyError("x"), FileNotFoundError(2, "No such file or directory", "a-file-of-ours")])
def test_other_errors_are_bugs(error: Exception) -> None:
    assert not is_transient(error)
