"""The log of an outage of Postgres: one line when it begins and one when it ends, however many tasks meet it."""

import time

import structlog

_log = structlog.get_logger()
_away_since: float | None = None


def database_failed(problem: BaseException, **context: object) -> None:
    """Log that the database is away, unless this process has logged it already."""
    global _away_since
    if _away_since is None:
        _away_since = time.monotonic()
        _log.warning("database-away", problem=type(problem).__name__, **context)


def database_answered() -> None:
    """Log that the database is back if this process has logged that it is away."""
    global _away_since
    if _away_since is not None:
        _log.info("database-back", seconds=round(time.monotonic() - _away_since, 1))
        _away_since = None
