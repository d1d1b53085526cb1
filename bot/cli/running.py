"""Common parts of all commands: the event loop, the log, errors in one line, and the connection to the database."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

from bot.logs import LogFormat, LogLevel, configure_logs

if TYPE_CHECKING:  # what only some commands need is imported where they use it: it takes a second
    from bot.node.context import NodeContext
    from bot.settings import Settings
    from bot.store.database import Connection

T = TypeVar("T")


def run(
    work: Coroutine[Any, Any, T],
    log_format: LogFormat = "text",
    log_level: LogLevel = "warning",
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    log_file: Path | None = None,
) -> T:
    """Run a command to its end, with the log of its parts from `log_level` on stderr, by default for people."""
    configure_logs(log_format, log_level, log_file)
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(work)
    except BaseExceptionGroup as group:
        problem: BaseException = group
        while isinstance(problem, BaseExceptionGroup):
            problem = problem.exceptions[0]
        raise problem from group


def run_on_database(work: Callable[["Connection"], Awaitable[T]], *, logs: bool = False) -> T:
    """Run a command that needs nothing but a connection to the bot's database; with `logs` see `run_on_node`."""
    from bot.settings import load
    from bot.store.database import database

    async def opened(settings: "Settings") -> T:
        async with ready_database(settings) as dsn, database(dsn, size=1) as pool, pool.acquire() as connection:
            return await work(connection)

    return _run_loaded(opened, load(), logs)


def run_on_node(work: Callable[["NodeContext"], Awaitable[T]], *, logs: bool = False) -> T:
    """Run a command that works on this node's worktrees; with `logs` by LOG_LEVEL and LOG_FORMAT, as workers log."""
    from bot.serve.parts import node_context
    from bot.settings import ON_NODE, load

    async def opened(settings: "Settings") -> T:
        async with ready_database(settings) as dsn, node_context(settings, dsn) as ctx:
            return await work(ctx)

    return _run_loaded(opened, load(needs=ON_NODE), logs)


def _run_loaded(work: Callable[["Settings"], Coroutine[Any, Any, T]], settings: "Settings", logs: bool) -> T:
    return run(work(settings), *((settings.log_format, settings.log_level) if logs else ()))


def fail(sentence: str, status: int = 1) -> NoReturn:
    """End the command with a sentence on stderr."""
    typer.echo(f"threadtree: {sentence}", err=True)
    raise typer.Exit(status)


def answered(ask: Callable[[], T]) -> T:
    """Return the answer to a question at the terminal; end the command where the input ends, or the answer is no."""
    try:
        return ask()
    except typer.Abort:
        typer.echo()
        fail("Not done: the answer was no, or the input ended.")


def explained(error: Exception) -> tuple[Sequence[str], int] | None:
    """Return the lines and the exit status for an error that the operator can correct; None for a bug."""
    import asyncpg

    from bot.care.backup import BackupError
    from bot.github.errors import GitHubError
    from bot.node.identity import NodeInUseError
    from bot.postgres.files import EmbeddedPostgresError
    from bot.serve.base import CannotStartError
    from bot.settings import SettingsError
    from bot.store.database import DATABASE_AWAY
    from bot.store.migrate import MigrationError

    if isinstance(error, SettingsError):
        return error.lines, 2
    told = (BackupError, CannotStartError, NodeInUseError, EmbeddedPostgresError, MigrationError, GitHubError)
    if isinstance(error, told):
        return [str(error)], 1
    if isinstance(error, OSError) and error.filename is not None:
        return [f"{error.filename} cannot be used: {error.strerror}"], 1
    if isinstance(error, (asyncpg.PostgresError, *DATABASE_AWAY)):
        return [f"DATABASE_URL cannot be used: {str(error) or type(error).__name__}"], 1
    return None


def tell(error: Exception) -> int:
    """Print what the operator can correct, and return the exit status. Raises an error that is a bug."""
    explanation = explained(error)
    if explanation is None:
        raise error
    lines, status = explanation
    for line in lines:
        typer.echo(f"threadtree: {line}", err=True)
    return status


def stop_signals(note: Callable[[int], None] = lambda _: None) -> asyncio.Event:
    """Return an event that a stop signal sets; `note` gets the signal's number."""
    stopping = asyncio.Event()

    def stop(number: int) -> None:
        note(number)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    return stopping


@asynccontextmanager
async def database_url(settings: "Settings") -> AsyncIterator[str]:
    """Yield the address of the database: the configured one, or that of the embedded Postgres, which is started."""
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    from bot.postgres.embedded import embedded_postgres

    async with embedded_postgres(settings.with_data_dir().data_dir / "postgres", settings.postgres_bin_dir) as dsn:
        yield dsn


@asynccontextmanager
async def ready_database(settings: "Settings") -> AsyncIterator[str]:
    """Yield the address of the database. An embedded one gets its schema, as from `serve`; another must have it."""
    async with database_url(settings) as dsn:
        if settings.database_url is None:
            from bot.store.migrate import migrate

            await migrate(dsn)
        yield dsn
