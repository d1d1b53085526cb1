"""The command line `threadtree`. Errors are one line on stderr: status 2 for what is to be corrected, else 1."""

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import asyncpg
import typer
import uvloop

from bot import compose, settings
from bot.cli import listings
from bot.cli.deliveries import add_replay
from bot.cli.doctor import add_doctor
from bot.cli.maintenance import add_prune, add_repair, add_session_prune
from bot.cli.worktrees import add_commands
from bot.cli.worktrees_list import add_list
from bot.compose import CannotStartError, Role
from bot.github.errors import GitHubError
from bot.logs import configure_logs
from bot.node.context import NodeContext
from bot.postgres.embedded import EmbeddedPostgresError
from bot.receive.file import receive_file
from bot.receive.inbox import Inbox, Unavailable
from bot.settings import Settings, SettingsError
from bot.store.database import DATABASE_AWAY, Connection, database
from bot.store.migrate import MigrationError, migrate

T = TypeVar("T")

app = typer.Typer(
    name="threadtree",
    help="A chat-ops bot for GitHub that runs a coding agent per conversation.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)


def main() -> None:
    """The entry point of the command."""
    configure_logs(json=not sys.stderr.isatty())
    with _errors_in_one_line():
        app()


@contextmanager
def _errors_in_one_line():  # type: ignore[no-untyped-def]
    """What the operator can mend is said in a line; anything else is a bug and keeps its traceback."""
    try:
        yield
    except SettingsError as error:
        for line in error.lines:
            print(f"threadtree: {line}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except (CannotStartError, EmbeddedPostgresError, MigrationError, GitHubError) as error:
        print(f"threadtree: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except (asyncpg.PostgresError, *DATABASE_AWAY) as error:
        print(f"threadtree: DATABASE_URL cannot be used: {error or type(error).__name__}", file=sys.stderr)  # noqa: T201
        sys.exit(1)


NoWorktreePrune = Annotated[
    bool, typer.Option("--no-worktree-prune", help="Leave old worktrees alone, as WORKTREE_PRUNE_ENABLED=false does.")
]


@app.command()
def serve(no_worktree_prune: NoWorktreePrune = False) -> None:
    """Run web and worker in one process, after bringing the schema up."""
    known = _pruning(settings.load(needs=settings.SERVE), off=no_worktree_prune)
    _run(_serve(known, frozenset({Role.WEB, Role.WORKER}), bring_up=True))


@app.command()
def web() -> None:
    """Run only the web process: it stores deliveries for some worker."""
    # The faster loop, where no agent is started: on it, an agent that only closes its output goes unnoticed.
    known = settings.load(needs=settings.WEB)
    _run(_serve(known, frozenset({Role.WEB})), loop_factory=uvloop.new_event_loop)


@app.command()
def worker(no_worktree_prune: NoWorktreePrune = False) -> None:
    """Run only a worker: it decides, runs turns and answers."""
    known = _pruning(settings.load(needs=settings.WORKER), off=no_worktree_prune)
    _run(_serve(known, frozenset({Role.WORKER})))


def _pruning(known: Settings, *, off: bool) -> Settings:
    return known.model_copy(update={"worktree_prune_enabled": False}) if off else known


@app.command("migrate")
def migrate_command() -> None:
    """Bring the database's schema up to this version."""

    async def bring_up() -> None:
        async with compose.database_url(settings.load()) as dsn:
            for name in await migrate(dsn):
                typer.echo(f"applied {name}")

    _run(bring_up())


@app.command()
def receive(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="A payload as JSON.")],
    event: Annotated[str, typer.Option(help="GitHub's name of the event, such as issue_comment.")],
) -> None:
    """Store a payload file as a delivery with a new GUID, as if GitHub had sent it, and print the GUID."""

    async def store() -> None:
        known = settings.load()
        async with _ready_database(known) as dsn, database(dsn, size=2) as pool, Inbox(pool) as inbox:
            delivery, outcome = await receive_file(inbox, event, file.read_bytes(), known.platform)
        if isinstance(outcome, Unavailable):
            raise CannotStartError(f"The delivery was not stored: {outcome.why}.")
        if delivery.state == "dead":
            raise SettingsError([f"{file} was stored as dead: {delivery.error}"])
        typer.echo(delivery.guid)

    _run(store())


@asynccontextmanager
async def _connection() -> AsyncIterator[Connection]:
    async with _ready_database(settings.load()) as dsn, database(dsn, size=1) as pool, pool.acquire() as connection:
        yield connection


@asynccontextmanager
async def _ready_database(known: Settings) -> AsyncIterator[str]:
    """The database with its schema: an embedded one is brought up like `serve` does, another must be current."""
    async with compose.database_url(known) as dsn:
        if known.database_url is None:
            await migrate(dsn)
        yield dsn


@asynccontextmanager
async def _ctx() -> AsyncIterator[NodeContext]:
    known = settings.load()
    async with _ready_database(known) as dsn, compose.node_context(known, dsn) as node_context:
        yield node_context


_groups = listings.mount(app, _connection)
add_replay(_groups["deliveries"], _connection)
add_session_prune(_groups["sessions"], _connection)
_worktrees = typer.Typer(help="The checkouts that conversations work in.", no_args_is_help=True)
app.add_typer(_worktrees, name="worktrees")
add_list(_worktrees, _ctx)
add_commands(_worktrees, _ctx)
add_prune(_worktrees, _ctx)
add_repair(_worktrees, _ctx)
add_doctor(app)


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running afterwards, until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the steps and checks as one JSON document.")] = False,
) -> None:
    """Play the whole story on this machine: real Postgres and git, a simulated GitHub, a scripted agent."""
    from bot.demo.command import run_demo  # the simulation is not needed by anything else

    async def play() -> bool:
        return await run_demo(settings.search_path(), _stop_signals(), keep=keep, json=json)

    if not _run(play(), log_level=logging.ERROR):
        sys.exit(1)


def _stop_signals() -> asyncio.Event:
    """Set when the process is asked to end."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping


async def _serve(known: Settings, roles: frozenset[Role], *, bring_up: bool = False) -> None:
    stopping = _stop_signals()
    async with compose.database_url(known) as dsn:
        if bring_up:
            await migrate(dsn)
        await compose.run(known, dsn, roles, stopping, on_listening=_listening)


def _listening(address: str) -> None:
    typer.echo(f"threadtree listens on {address}; GitHub's webhook goes to {address}/webhooks/github", err=True)


def _run(
    work: Coroutine[Any, Any, T],
    log_level: int = logging.INFO,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    configure_logs(json=not sys.stderr.isatty(), level=log_level)
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(work)
    except BaseExceptionGroup as group:
        raise _first(group) from group


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one problem of a group worth a line."""
    problem: BaseException = group
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem
