"""`threadtree serve|web|worker|migrate|receive`, `deliveries replay|recover`: processes, and what feeds them."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import orjson
import structlog
import typer

from bot.cli.running import database_url, fail, ready_database, run, stop_signals
from bot.cli.serving import end_with
from bot.cli.serving import serve as serve_both
from bot.settings import SERVE, WEB, WORKER, Need, Settings, SettingsError, doubtful_names, load
from bot.tasks import unless_stopped

# What a process runs is imported in it: the web process has no agents, no git and no client of GitHub.

_log = structlog.get_logger()


def serve(*, worktree_prune: bool) -> None:
    """Run `web` and `worker` until they are asked to end, or one of them ends."""
    settings = load(needs=SERVE)

    async def both() -> int:
        _begin(None)
        return await serve_both(settings, *([] if worktree_prune else ["--no-worktree-prune"]))

    if status := run(both(), settings.log_format, settings.log_level):
        raise typer.Exit(status)


def web(parent: int | None) -> None:
    """Run the web process until it is asked to end."""
    settings = load(needs=WEB)
    # The faster loop is for the web process alone: on it, an agent that only closes its output goes unnoticed.
    import uvloop

    from bot.compose.base import redactor_of
    from bot.compose.web import run_web

    async def serving() -> None:
        async with database_url(settings) as dsn:
            await run_web(settings, dsn, redactor_of(settings), _say_address)

    async def until_stopped() -> None:
        _begin(parent)
        await unless_stopped(stop_signals(), serving())

    run(until_stopped(), settings.log_format, settings.log_level, uvloop.new_event_loop)


def worker(parent: int | None, *, worktree_prune: bool) -> None:
    """Run a worker until it is asked to end."""
    settings = load(needs=WORKER)
    if not worktree_prune:
        settings = settings.model_copy(update={"worktree_prune_enabled": False})

    async def until_stopped() -> None:
        _begin(parent)
        stopping = stop_signals()
        async with AsyncExitStack() as stack:
            dsn = await unless_stopped(stopping, stack.enter_async_context(database_url(settings)))
            if dsn is not None:
                await _worker(settings, dsn, stopping)

    run(until_stopped(), settings.log_format, settings.log_level)


async def _worker(settings: Settings, dsn: str, stopping: asyncio.Event) -> None:
    from bot.compose.base import redactor_of
    from bot.compose.parts import Surroundings
    from bot.compose.process import run_worker

    await run_worker(settings, dsn, redactor_of(settings), stopping, Surroundings())


def _begin(parent: int | None) -> None:
    """Tie this process to `serve`, which started it, or warn as `serve` does."""
    if parent is None:
        for line in doubtful_names():
            _log.warning("setting-without-effect", problem=line)
    end_with(parent)


def _say_address(address: str) -> None:
    _log.info("listening", address=address, webhook="https://YOUR-ADDRESS/webhooks/github")


def migrate() -> None:
    """Apply the migrations that the database lacks, and print their names."""
    from bot.store.migrate import migrate as apply_migrations

    settings = load()

    async def migrated() -> None:
        async with database_url(settings) as dsn:
            for name in await apply_migrations(dsn):
                typer.echo(f"applied {name}")

    run(migrated(), settings.log_format, settings.log_level)


def receive(file: Path, event: str) -> None:
    """Store a payload file as a delivery, and print its GUID."""
    from bot.compose.base import CannotStartError
    from bot.receive.delivery import delivery_of
    from bot.receive.inbox import Inbox, Unavailable
    from bot.store.database import database

    body = file.read_bytes()

    async def stored() -> None:
        settings = load()
        async with ready_database(settings) as dsn, database(dsn, size=2) as pool, Inbox(pool) as inbox:
            delivery = delivery_of(str(uuid4()), event, body, settings.platform)
            outcome = await inbox.store(delivery)
        if isinstance(outcome, Unavailable):
            raise CannotStartError(f"The delivery was not stored: {outcome.why}.")
        if delivery.state == "dead":
            raise SettingsError([f"{file} was stored as dead: {delivery.error}"])
        typer.echo(delivery.guid)

    run(stored())


def recover(*, json: bool) -> None:
    """Compare GitHub's log with the inbox now, and print what was recovered of each source."""
    from bot.compose.base import redactor_of, require_current_schema
    from bot.compose.parts import Surroundings, open_github
    from bot.compose.process import policy_of
    from bot.messages.formatting import format_count
    from bot.receive.recover import Recovered
    from bot.receive.recover import recover as recover_missed
    from bot.store.database import database

    settings = load(needs=frozenset({Need.GITHUB}))

    async def recovered() -> list[Recovered] | None:
        around, redactor = Surroundings(), redactor_of(settings)
        async with (
            ready_database(settings) as dsn,
            database(dsn, size=2, redactor=redactor) as pool,
            open_github(settings, around, redactor) as github,
        ):
            async with pool.acquire() as connection:
                await require_current_schema(connection)
            policy = policy_of(settings, await github.identity())
            return await recover_missed(pool, github, settings.platform, policy, around.clock())

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
        typer.echo("No repository was active in the last 30 days.")
