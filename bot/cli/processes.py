"""`threadtree serve|web|worker|migrate|receive`, `deliveries replay|recover`: processes, and what feeds them."""

import asyncio
import contextlib
import os
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, assert_never
from uuid import uuid4

import orjson
import structlog
import typer

from bot.cli.child import Child, Parent, fork
from bot.cli.running import database_url, fail, ready_database, run, run_on_database, stop_signals, tell
from bot.settings import SERVE, WEB, WORKER, Need, Settings, SettingsError, doubtful_names, load

# What a process runs is imported in it: the web process has no agents, no git and no client of GitHub.

# Beside a web process, a busy worker and its agents leave the processor to acknowledgements.
WORKER_NICENESS = 5
_log = structlog.get_logger()


def serve(*, worktree_prune: bool) -> None:
    """Run web and worker until they are asked to end, or one of them ends.

    The web part is a child, so that no decision, agent or long text delays an acknowledgement.
    """
    settings = _with_prune(load(needs=SERVE), worktree_prune=worktree_prune)

    def web_part(parent: Parent) -> int:
        try:
            _run_web(_web_of(settings, parent), settings)
        except Exception as error:  # noqa: BLE001 -- told, or raised again
            return tell(error)
        return 0

    child = fork("web", web_part)
    try:
        run(_serve(settings, child), settings.log_format, settings.log_level)
    finally:
        status = child.end()
    if status:
        raise typer.Exit(status)


def web() -> None:
    """Run the web process until it is asked to end."""
    settings = load(needs=WEB)

    async def until_stopped() -> None:
        _warn_of_doubtful_names()
        stopping = stop_signals()
        async with database_url(settings) as dsn:
            await _web(settings, dsn, stopping)

    _run_web(until_stopped(), settings)


def worker(*, worktree_prune: bool) -> None:
    """Run a worker until it is asked to end."""
    settings = _with_prune(load(needs=WORKER), worktree_prune=worktree_prune)

    async def until_stopped() -> None:
        _warn_of_doubtful_names()
        stopping = stop_signals()
        async with database_url(settings) as dsn:
            await _worker(settings, dsn, stopping)

    run(until_stopped(), settings.log_format, settings.log_level)


async def _serve(settings: Settings, child: Child) -> None:
    """Bring the schema up to date, then let the child begin and run the worker. Deliveries are taken until it ended."""
    from bot.store.migrate import migrate as apply_migrations

    _warn_of_doubtful_names()
    stopping = stop_signals()
    child.when_ended(stopping.set)
    async with database_url(settings) as dsn:
        await apply_migrations(dsn)
        child.begin(dsn)
        # After Postgres was started, which must not wait either: what is left to start are git and agents.
        os.nice(WORKER_NICENESS)
        # Nor does one of them interrupt an acknowledgement when it wakes up; a container may forbid to ask for that.
        # https://man7.org/linux/man-pages/man7/sched.7.html
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        try:
            await _worker(settings, dsn, stopping)
        finally:
            await asyncio.to_thread(child.end)


async def _web_of(settings: Settings, parent: Parent) -> None:
    """Run the web part once the parent has sent the database's address, until it lets go or ends."""
    stopping = stop_signals()
    if (dsn := await parent.message(stopping)) is not None:
        await _web(settings, dsn, stopping)


async def _web(settings: Settings, dsn: str, stopping: asyncio.Event) -> None:
    from bot.compose.base import redactor_of
    from bot.compose.web import run_web

    await run_web(settings, dsn, redactor_of(settings), stopping, _say_address)


async def _worker(settings: Settings, dsn: str, stopping: asyncio.Event) -> None:
    from bot.compose.base import redactor_of
    from bot.compose.parts import Surroundings
    from bot.compose.process import run_worker

    await run_worker(settings, dsn, redactor_of(settings), stopping, Surroundings())


def _run_web(work: Coroutine[Any, Any, None], settings: Settings) -> None:
    # The faster loop is for the web process alone: on it, an agent that only closes its output goes unnoticed.
    import uvloop

    run(work, settings.log_format, settings.log_level, uvloop.new_event_loop)


def _with_prune(settings: Settings, *, worktree_prune: bool) -> Settings:
    return settings if worktree_prune else replace(settings, worktree_prune_enabled=False)


def _warn_of_doubtful_names() -> None:
    for line in doubtful_names():
        _log.warning("setting-without-effect", problem=line)


def _say_address(address: str) -> None:
    typer.echo(
        f"threadtree listens on {address}; GitHub's webhook goes to https://YOUR-ADDRESS/webhooks/github", err=True
    )


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


def replay(guid: str) -> None:
    """Handle a stored delivery again; exit status 1 when there is nothing to run."""
    from bot.store import deliveries

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
