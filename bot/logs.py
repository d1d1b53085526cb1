"""Logging: structlog and the standard library's loggers through one pipe to stderr."""

import logging
import sys
from typing import Literal

import structlog

from bot.redaction import Redactor

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "text"]

NOISY = ("uvicorn.error", "httpx", "httpcore", "uvicorn.access", "procrastinate", "asyncio")
# It warns of every attempt to connect; that the database is away is logged once, by `bot.store.failures`.
NOISIER = ("psycopg.pool",)

_redactor = Redactor()


def redact_with(redactor: Redactor) -> None:
    """Keep what this redactor knows out of the log, which is the process's own as its secrets are."""
    global _redactor
    _redactor = redactor


def configure_logs(form: LogFormat = "auto", level: LogLevel = "info") -> None:
    """Log from `level` on as JSON or text; `auto` is text on a terminal and JSON elsewhere."""
    json = form == "json" or (form == "auto" and not sys.stderr.isatty())
    threshold = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if json
        # A plain traceback: another shows the values of variables.
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )

    def render(logger: structlog.typing.WrappedLogger, name: str, event: structlog.typing.EventDict) -> str:
        """Render last, so that also tracebacks are redacted."""
        return _redactor.redact(str(renderer(logger, name, event)))

    last: list[structlog.typing.Processor] = [structlog.processors.format_exc_info] if json else []
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last, render],
        )
    )
    logging.basicConfig(level=threshold, handlers=[handler], force=True)
    for name in NOISY:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
    for name in NOISIER:
        logging.getLogger(name).setLevel(logging.ERROR)
