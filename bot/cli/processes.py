"""`threadtree serve|web|worker|migrate|receive`: the processes of the bot, and what prepares or feeds them."""

import logging
from pathlib import Path
from uuid import uuid4

import structlog
import typer
import uvloop

from bot.cli.running import ready_database, run, stop_signals
from bot.compose import process
from bot.compose.database import CannotStartError, database_url
from bot.compose.process import Role
from bot.receive.delivery import delivery_of
from bot.receive.inbox import Inbox, Unavailable
from bot.settings import SERVE, WEB, WORKER, Settings, SettingsError, doubtful_names, load
from bot.store.database import database
from bot.store.migrate import migrate

_log = structlog.get_logger()


def serve(*, worktree_prune: bool) -> None:
    """Web and worker in one process, on a schema that this process brings up."""
    settings = _with_pruning(load(needs=SERVE), worktree_prune)
    run(_run_process(settings, frozenset({Role.WEB, Role.WORKER}), bring_up=True), logging.INFO)


def web() -> None:
    """The web process alone."""
    # The faster loop, where no agent is started: on it, an agent that only closes its output goes unnoticed.
    work = _run_process(load(needs=WEB), frozenset({Role.WEB}))
    run(work, logging.INFO, loop_factory=uvloop.new_event_loop)


def worker(*, worktree_prune: bool) -> None:
    """A worker alone."""
    run(_run_process(_with_pruning(load(needs=WORKER), worktree_prune), frozenset({Role.WORKER})), logging.INFO)


def _with_pruning(settings: Settings, worktree_prune: bool) -> Settings:
    return settings if worktree_prune else settings.model_copy(update={"worktree_prune_enabled": False})


async def _run_process(settings: Settings, roles: frozenset[Role], *, bring_up: bool = False) -> None:
    for line in doubtful_names():
        _log.warning("setting-without-effect", problem=line)
    stopping = stop_signals()
    async with database_url(settings) as dsn:
        if bring_up:
            await migrate(dsn)
        await process.run(settings, dsn, roles, stopping, on_listening=_say_address)


def _say_address(address: str) -> None:
    typer.echo(
        f"threadtree listens on {address}; GitHub's webhook goes to https://YOUR-ADDRESS/webhooks/github", err=True
    )


def bring_schema_up() -> None:
    """Apply the migrations that the database lacks, and print their names."""

    async def bring_up() -> None:
        async with database_url(load()) as dsn:
            for name in await migrate(dsn):
                typer.echo(f"applied {name}")

    run(bring_up(), logging.INFO)


def receive(file: Path, event: str) -> None:
    """Store a payload file as a delivery, and print its GUID."""

    body = file.read_bytes()

    async def store() -> None:
        settings = load()
        async with ready_database(settings) as dsn, database(dsn, size=2) as pool, Inbox(pool) as inbox:
            delivery = delivery_of(str(uuid4()), event, body, settings.platform)
            outcome = await inbox.store(delivery)
        if isinstance(outcome, Unavailable):
            raise CannotStartError(f"The delivery was not stored: {outcome.why}.")
        if delivery.state == "dead":
            raise SettingsError([f"{file} was stored as dead: {delivery.error}"])
        typer.echo(delivery.guid)

    run(store())
