"""`threadtree doctor`: a table for people, `--json` for scripts; exit status 1 if what is set up here cannot work."""

from collections.abc import Sequence
from contextlib import AsyncExitStack

import typer
from rich.console import Console
from rich.text import Text

from bot.cli.calls import print_json, print_table
from bot.cli.doctor.checks import examine
from bot.cli.doctor.services import Check
from bot.cli.options import Json
from bot.cli.running import database_url, run, stop_signals
from bot.github.registration import Registration
from bot.serve.base import redactor_of
from bot.serve.parts import Surroundings, open_client
from bot.settings import SERVE, read
from bot.tasks import unless_stopped
from bot.thread.formatting import format_count

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}
# What a shell gives for a process that a signal ended, with the signal's number.
_ENDED_BY = 128


def doctor(json: Json = False) -> None:
    """Check settings, database, GitHub, sandbox, model and agents. It costs nothing and leaves nothing behind."""
    with Console(stderr=True).status("Asking the database, GitHub and the model, and starting the agent …"):
        checks = run(_until_stopped(), log_level="error")
    if isinstance(checks, int):
        raise typer.Exit(_ENDED_BY + checks)
    if json:
        print_json(checks)
    else:
        show(checks)
    if any(check.state == "problem" for check in checks):
        raise typer.Exit(1)


async def _until_stopped() -> list[Check] | int:
    """Return the checks, or the number of the signal that ended them, after everything that was started is gone."""
    numbers: list[int] = []
    return await unless_stopped(stop_signals(numbers.append), examined()) or numbers[0]


async def examined() -> list[Check]:
    """Run every check on the settings of the environment and `.env`."""
    settings, problems = read(needs=SERVE)
    async with AsyncExitStack() as stack:
        github = None
        if settings.github_token is not None or (settings.github_app_id and settings.github_private_key):
            client = open_client(Registration, settings, Surroundings(), redactor_of(settings))
            github = await stack.enter_async_context(client)
        return await examine(settings, problems, github, database_url(settings))


def show(checks: Sequence[Check]) -> None:
    """Print the checks for people."""
    rows = [(check.check, Text(check.state, style=_STYLES[check.state]), Text(check.found)) for check in checks]
    for check, (_, _, found) in zip(checks, rows, strict=True):
        if check.next_step:
            found.append(f"\n→ {check.next_step}", style="dim" if check.state == "ok" else "")
    print_table(("CHECK", "STATE", "FOUND"), 2, rows)
    problems = sum(check.state == "problem" for check in checks)
    typer.echo(f"\n{format_count(problems, 'problem')}." if problems else "\nWhat is set up here works.")
