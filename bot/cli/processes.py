"""`threadtree serve|web|worker|migrate|receive`, `deliveries replay`: the bot's processes, and what feeds them."""

from pathlib import Path
from typing import assert_never
from uuid import uuid4

import structlog
import typer
import uvloop

from bot.cli.running import database_url, fail, ready_database, run, run_on_database, stop_signals
from bot.compose import process
from bot.compose.parts import CannotStartError
from bot.compose.process import Role
from bot.receive.delivery import delivery_of
from bot.receive.inbox import Inbox, Unavailable
from bot.settings import SERVE, WEB, WORKER, Settings, SettingsError, doubtful_names, load
from bot.store import deliveries
from bot.store.database import database
from bot.store.migrate import migrate as apply_migrations

PROCESSES = {
    "serve": (SERVE, frozenset({Role.WEB, Role.WORKER})),
    "web": (WEB, frozenset({Role.WEB})),
    "worker": (WORKER, frozenset({Role.WORKER})),
}
_log = structlog.get_logger()


def start(name: str, *, worktree_prune: bool = True) -> None:
    """Run one of PROCESSES until it is asked to end."""
    needs, roles = PROCESSES[name]
    settings = load(needs=needs)
    if not worktree_prune:
        settings = settings.model_copy(update={"worktree_prune_enabled": False})
    # The faster loop, where no agent is started: on it, an agent that only closes its output goes unnoticed.
    loop_factory = None if Role.WORKER in roles else uvloop.new_event_loop
    work = _run_process(settings, roles, with_migrations=name == "serve")
    run(work, settings.log_format, settings.log_level, loop_factory)


async def _run_process(settings: Settings, roles: frozenset[Role], *, with_migrations: bool) -> None:
    for line in doubtful_names():
        _log.warning("setting-without-effect", problem=line)
    stopping = stop_signals()
    async with database_url(settings) as dsn:
        if with_migrations:
            await apply_migrations(dsn)
        await process.run(settings, dsn, roles, stopping, on_listening=_say_address)


def _say_address(address: str) -> None:
    typer.echo(
        f"threadtree listens on {address}; GitHub's webhook goes to https://YOUR-ADDRESS/webhooks/github", err=True
    )


def migrate() -> None:
    """Apply the migrations that the database lacks, and print their names."""
    settings = load()

    async def migrated() -> None:
        async with database_url(settings) as dsn:
            for name in await apply_migrations(dsn):
                typer.echo(f"applied {name}")

    run(migrated(), settings.log_format, settings.log_level)


def receive(file: Path, event: str) -> None:
    """Store a payload file as a delivery, and print its GUID."""
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


def replay(guid: str) -> None:
    """Handle a stored delivery again; exit status 1 when there is nothing to run."""
    match run_on_database(lambda connection: deliveries.replay(connection, guid)):
        case "replayed":
            typer.echo(f"{guid} is handled again.")
        case "waiting":
            typer.echo(f"{guid} is waiting to be handled already.")
        case "unknown":
            fail(f"There is no delivery {guid}: `threadtree deliveries list` shows them.")
        case "nothing-to-run":
            fail(f"{guid} cannot be run: it meant nothing to the bot, or its body is no longer kept.")
        case other:
            assert_never(other)
