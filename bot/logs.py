"""Logging: structlog and the standard library's loggers through one pipe to stderr, and to a file of the process."""

import logging
import sys
from collections.abc import Iterable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Literal

import structlog

from bot.redaction import Redactor

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "text"]

FOLDER = "logs"
"""In DATA_DIR."""
# For each process: the file, and as much in older ones.
FILE_BYTES, OLDER_FILES = 10 << 20, 4
NOISY = {
    **dict.fromkeys(
        ("uvicorn.error", "httpx", "httpcore", "uvicorn.access", "procrastinate", "asyncio"), logging.WARNING
    ),
    # It warns of every attempt to connect; that the database is away is logged once, by `bot.store.failures`.
    "psycopg.pool": logging.ERROR,
}

_redactor = Redactor()


def redact_with(redactor: Redactor) -> None:
    """Keep what this redactor knows out of the log, which is the process's own as its secrets are."""
    global _redactor
    _redactor = redactor


def hide(secrets: Iterable[str]) -> None:
    """Keep these out of the log too, from now on."""
    _redactor.know(secrets)


def configure_logs(form: LogFormat = "auto", level: LogLevel = "info", file: Path | None = None) -> None:
    """Log from `level` on as JSON or text; `auto` is text on a terminal and JSON elsewhere. In `file` it is JSON."""
    json = form == "json" or (form == "auto" and not sys.stderr.isatty())
    threshold = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]

    def redact(logger: structlog.typing.WrappedLogger, name: str, line: object) -> str:
        """Come last, so that also tracebacks are redacted."""
        return _redactor.redact(str(line))

    def formatter(*last: structlog.typing.Processor) -> logging.Formatter:
        meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
        return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[meta, *last, redact])

    as_json = (structlog.processors.format_exc_info, structlog.processors.JSONRenderer())
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    # A plain traceback: another shows the values of variables.
    colors, plain = sys.stderr.isatty(), structlog.dev.plain_traceback
    as_text = (structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain),)
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    handlers[0].setFormatter(formatter(*(as_json if json else as_text)))
    if file is not None:
        handlers.append(RotatingFileHandler(file, maxBytes=FILE_BYTES, backupCount=OLDER_FILES))
        handlers[1].setFormatter(formatter(*as_json))
    logging.basicConfig(level=threshold, handlers=handlers, force=True)
    for name, least in NOISY.items():
        logging.getLogger(name).setLevel(max(threshold, least))
