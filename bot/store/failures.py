"""Failures of the database and of the job engine: those that pass, and those that are bugs.

An outage is logged once when it begins and once when it ends, however many tasks meet it.
"""

import time

import asyncpg
import structlog

from bot.store.database import DATABASE_AWAY, TRANSIENT_SQLSTATES

_log = structlog.get_logger()
_away_since: float | None = None
_outages = 0


def is_transient(problem: BaseException) -> bool:
    """Return whether what failed in our database or in the job engine's may succeed later."""
    # Imported here: commands need not wait for the engine.
    import psycopg
    from procrastinate.exceptions import ConnectorException

    match problem:
        case asyncpg.DataError():
            return False  # a value that Postgres cannot hold
        case OSError():
            return isinstance(problem, (ConnectionError, TimeoutError))  # any other is of a file of ours
        case asyncpg.InvalidCachedStatementError():
            return True  # a migration under this process; the next attempt knows the new schema
        case ConnectorException(__cause__=BaseException() as cause):
            return is_transient(cause)
        case asyncpg.PostgresError(sqlstate=str(code)) | psycopg.Error(sqlstate=str(code)):
            return code.startswith(TRANSIENT_SQLSTATES)
        case _:
            return isinstance(problem, (*DATABASE_AWAY, psycopg.OperationalError))


def log_failure(task: str, problem: BaseException, **context: object) -> None:
    """Log why a task failed that is tried again: an error with its traceback, unless the database is away."""
    if is_transient(problem):
        database_failed(problem, task=task, **context)
    else:
        _log.error("task-failed", task=task, exc_info=problem, **context)


def database_failed(problem: BaseException, **context: object) -> None:
    """Log that the database is away, unless this process has logged it already."""
    global _away_since
    if _away_since is None:
        _away_since = time.monotonic()
        _log.warning("database-away", problem=type(problem).__name__, **context)


def database_answered() -> None:
    """Log that the database is back if this process has logged that it is away."""
    global _away_since, _outages
    if _away_since is not None:
        _outages += 1
        _log.info("database-back", seconds=round(time.monotonic() - _away_since, 1))
        _away_since = None


def outages() -> int:
    """Return how many outages of the database have ended that this process has logged."""
    return _outages
