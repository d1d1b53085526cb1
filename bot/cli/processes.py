"""`threadtree serve|web|worker|migrate|receive|demo`, `deliveries recover`: processes, and what feeds them."""

import asyncio
import ctypes
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Annotated, TypeVar
from uuid import uuid4

import orjson
import structlog
import typer

from bot.cli.options import Json
from bot.cli.running import database_url, fail, ready_database, run, stop_signals
from bot.logs import FOLDER
from bot.settings import POLL_SECONDS, SERVE, WEB, WORKER, Need, Settings, SettingsError, doubtful_names, load, read
from bot.tasks import unless_stopped

# What a process runs is imported in it: the web process has no agents, no git and no client of GitHub.

# Beside a web process, a busy worker and its agents leave the processor to acknowledgements.
WORKER_NICENESS = 5
# The web process gives its last requests 10 s, then its connections to the database as much.
WEB_END_SECONDS = 25.0
_ASKED_TO_END = (signal.SIGTERM, signal.SIGINT)
# https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
_PR_SET_PDEATHSIG = 1
_log = structlog.get_logger()
T = TypeVar("T")

NoWorktreePrune = Annotated[
    bool, typer.Option("--no-worktree-prune", help="Keep old worktrees, as WORKTREE_PRUNE_ENABLED=false does.")
]
Poll = Annotated[
    bool,
    typer.Option(
        "--poll",
        help="Take deliveries from GitHub's log, as POLL_INTERVAL_SECONDS=5 does: no address that GitHub reaches is "
        "needed.",
    ),
]
EndWith = Annotated[int | None, typer.Option(hidden=True, help="The process to end with.")]


def serve(poll: Poll = False, no_worktree_prune: NoWorktreePrune = False) -> None:
    """Apply the migrations, then run web and worker. If one of the two processes ends, so does the other."""
    settings = load(needs=SERVE)

    given = {"--poll": poll, "--no-worktree-prune": no_worktree_prune}
    worker_options = [option for option, is_given in given.items() if is_given]
    if status := _run(settings, "serve", lambda dsn, stopping: _serve(dsn, stopping, *worker_options)):
        raise typer.Exit(status)


async def _serve(dsn: str, stopping: asyncio.Event, *worker_options: str) -> int:
    """Bring the schema up to date and run both until a stop signal, or until one of them ends; return the status."""
    from bot.store.migrate import migrate

    if await unless_stopped(stopping, migrate(dsn)) is None:
        return 0
    web, worker = await _start("web"), await _start("worker", *worker_options)
    with suppress(ProcessLookupError):  # it has ended
        os.setpriority(os.PRIO_PROCESS, worker.pid, WORKER_NICENESS)
    ends = [asyncio.create_task(waiting) for waiting in (web.wait(), worker.wait(), stopping.wait())]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    # Deliveries are taken until the worker has ended.
    statuses = [await _end("worker", worker), await _end("web", web, WEB_END_SECONDS)]
    return next(filter(None, statuses), 0)


async def _start(command: str, *options: str) -> Process:
    # `-P`: no module is imported from the working directory, which holds `.env` and perhaps anything.
    argv = (sys.executable, "-P", "-m", "bot", command, f"--end-with={os.getpid()}", *options)
    return await asyncio.create_subprocess_exec(*argv, stdin=DEVNULL)


async def _end(name: str, process: Process, seconds: float | None = None) -> int:
    """End a process with SIGTERM, after this time with SIGKILL; return its exit status, 0 for a stop signal."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(seconds):
            status = await process.wait()
    except TimeoutError:
        process.kill()
        status = await process.wait()
    if status >= 0:
        return status
    if -status in _ASKED_TO_END:
        return 0
    _log.warning("process-killed", name=name, signal=signal.Signals(-status).name)
    return 128 - status


def web(end_with: EndWith = None) -> None:
    """Run only the web process: it stores deliveries for a worker."""
    settings = load(needs=WEB)
    # The faster loop is for the web process alone: on it, an agent that only closes its output goes unnoticed.
    import uvloop

    from bot.serve.base import redactor_of
    from bot.serve.web import run_web

    async def serving(dsn: str, stopping: asyncio.Event) -> None:
        await unless_stopped(stopping, run_web(settings, dsn, redactor_of(settings), _say_address))

    _run(settings, "web", serving, end_with, uvloop.new_event_loop)


def worker(poll: Poll = False, no_worktree_prune: NoWorktreePrune = False, end_with: EndWith = None) -> None:
    """Run only a worker: it decides, runs turns and answers."""
    settings = load(needs=WORKER)
    if poll and settings.poll_interval_seconds is None:
        settings = settings.model_copy(update={"poll_interval_seconds": POLL_SECONDS})
    if no_worktree_prune:
        settings = settings.model_copy(update={"worktree_prune_enabled": False})
    from bot.serve.base import redactor_of
    from bot.serve.parts import Surroundings
    from bot.serve.process import run_worker

    async def working(dsn: str, stopping: asyncio.Event) -> None:
        await run_worker(settings, dsn, redactor_of(settings), stopping, Surroundings())

    _run(settings, "worker", working, end_with)


def _run(
    settings: Settings,
    name: str,
    work: Callable[[str, asyncio.Event], Awaitable[T]],
    parent: int | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T | None:
    """Run a process on the database until a stop signal. Its log is on stderr and in DATA_DIR."""
    folder = settings.data_dir / FOLDER
    with suppress(SettingsError, OSError):  # told where DATA_DIR is needed
        settings.with_data_dir()
        folder.mkdir(mode=0o700, exist_ok=True)
    file = folder / f"{name}.log" if os.access(folder, os.W_OK) else None

    async def until_stopped() -> T | None:
        _begin(parent)
        stopping = stop_signals()
        async with AsyncExitStack() as stack:
            dsn = await unless_stopped(stopping, stack.enter_async_context(database_url(settings)))
            return None if dsn is None else await work(dsn, stopping)

    return run(until_stopped(), settings.log_format, settings.log_level, loop_factory, file)


def _begin(parent: int | None) -> None:
    """Warn as `serve` does; or let SIGTERM end this process when `serve`, which started it, ends in any way."""
    if parent is None:
        for line in doubtful_names():
            _log.warning("setting-without-effect", problem=line)
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(0)


def _say_address(address: str) -> None:
    _log.info("listening", address=address, webhook="https://YOUR-ADDRESS/webhooks/github")


def migrate() -> None:
    """Apply the migrations that the database lacks."""
    from bot.store.migrate import migrate as apply_migrations

    settings = load()

    async def migrated() -> None:
        async with database_url(settings) as dsn:
            for name in await apply_migrations(dsn):
                typer.echo(f"applied {name}")

    run(migrated(), settings.log_format, settings.log_level)


def receive(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="A payload as JSON.")],
    event: Annotated[str, typer.Option(help="GitHub's name of the event, such as issue_comment.")],
) -> None:
    """Store a payload file as a delivery with a new GUID, as if GitHub had sent it, and print the GUID."""
    from bot.inbox.delivery import delivery_of
    from bot.inbox.inbox import Inbox, Unavailable
    from bot.serve.base import CannotStartError
    from bot.store.database import database

    body = file.read_bytes()

    async def stored() -> None:
        settings = load()
        async with ready_database(settings) as dsn, database(dsn, size=2) as pool:
            delivery = delivery_of(str(uuid4()), event, body, settings.platform)
            outcome = await Inbox(pool).store(delivery)
        if isinstance(outcome, Unavailable):
            raise CannotStartError(f"The delivery was not stored: {outcome.why}.")
        if delivery.state == "dead":
            raise SettingsError([f"{file} was stored as dead: {delivery.error}"])
        typer.echo(delivery.guid)

    run(stored())


def recover(json: Json = False) -> None:
    """Fetch what GitHub delivered in the last three days while nothing listened, as a worker does now and then."""
    from bot.github.client import GitHub
    from bot.inbox.recover import Recovered, Recovery
    from bot.serve.base import redactor_of, require_current_schema
    from bot.serve.parts import Surroundings, open_client
    from bot.store.database import database
    from bot.thread.formatting import format_count

    settings = load(needs=frozenset({Need.GITHUB}))

    async def recovered() -> list[Recovered] | None:
        around, redactor = Surroundings(), redactor_of(settings)
        async with (
            ready_database(settings) as dsn,
            database(dsn, size=3, redactor=redactor) as pool,
            open_client(GitHub, settings, around, redactor) as github,
        ):
            async with pool.acquire() as connection:
                await require_current_schema(connection)
            return await Recovery(pool, github, settings.platform, around.clock, settings.named_repos).round()

    found = run(recovered())
    if found is None:
        fail("A worker is doing it at this moment.")
    if json:
        typer.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2))
        return
    for one in found:
        typer.echo(f"{one.source}: {format_count(len(one.guids), 'event')} recovered")
        if one.problem is not None:
            typer.echo(f"{one.source}: {one.problem}", err=True)
    if not found:
        typer.echo("No repository is named in WEBHOOK_REPOS or ALLOWED_REPOS, and none was active in the last 30 days.")


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep everything running afterwards, until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the steps and checks as one JSON document.")] = False,
) -> None:
    """Play the whole story on this machine: real Postgres and git, a simulated GitHub, a scripted agent."""
    from bot.demo.command import run_demo

    settings, _ = read(dotenv=None)

    async def played() -> bool:
        return await run_demo(settings.path, settings.agent_sandbox, stop_signals(), keep=keep, json=json)

    if not run(played(), log_level="error"):
        raise typer.Exit(1)
