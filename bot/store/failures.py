"""Failures of the database and of the job engine: those that pass, and those that are bugs."""

import asyncpg
import structlog

from bot.store.database import DATABASE_AWAY, TRANSIENT_SQLSTATES
from bot.store.outage import database_failed

_log = structlog.get_logger()


def is_transient(problem: BaseException) -> bool:
    """Return whether what failed in our database or in the job engine's may succeed later."""
    # Imported here: commands need not wait for the engine.
    import psycopg
    from procrastinate.exceptions import ConnectorException

    match problem:
        case asyncpg.DataError():
            return False  # a value that Postgres cannot hold
        case OSError(filename=str()):
            return False  # a file of ours
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
