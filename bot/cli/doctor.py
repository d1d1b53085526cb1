"""`threadtree doctor`: a table for people, `--json` for scripts; exit status 1 if what is set up here cannot work."""

import asyncio
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bot.cli.running import run
from bot.compose.base import redactor_of
from bot.compose.parts import Surroundings, open_github
from bot.doctor.checks import Check, examine, known_settings
from bot.messages.formatting import format_count

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}
# What a shell gives for a process that a signal ended, with the signal's number.
_ENDED_BY = 128


def report(*, json: bool) -> None:
    """Print every check. Exit status 1 for a problem, 128 and the signal's number when a signal ended it."""
    with Console(stderr=True).status("Asking GitHub, and starting each installed agent …"):
        checks = run(_until_stopped(), log_level="error")
    if isinstance(checks, signal.Signals):
        raise typer.Exit(_ENDED_BY + checks)
    if json:
        typer.echo(orjson.dumps(checks, option=orjson.OPT_INDENT_2))
    else:
        _show(checks)
    if any(check.state == "problem" for check in checks):
        raise typer.Exit(1)


async def _until_stopped() -> list[Check] | signal.Signals:
    """Return the checks, or the signal that ended the process after everything that was started is gone."""
    examining = asyncio.create_task(examined())
    signals: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        signals.append(number)
        if not examining.cancelling():  # a second signal must not disturb the cleaning up
            examining.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    await asyncio.wait({examining})
    return signals[0] if examining.cancelled() else examining.result()


async def examined() -> list[Check]:
    """Run every check on the settings of the environment and `.env`."""
    known = known_settings()
    settings = known.settings
    async with AsyncExitStack() as stack:
        github = None
        if settings.github_token is not None or (settings.github_app_id and settings.github_private_key):
            github = await stack.enter_async_context(open_github(settings, Surroundings(), redactor_of(settings)))
        return await examine(known, github)


def _show(checks: Sequence[Check]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for header in ("CHECK", "STATE", "FOUND"):
        table.add_column(header, no_wrap=header != "FOUND", overflow="fold")
    for check in checks:
        found = Text(check.found)
        if check.next_step:
            found.append(f"\n→ {check.next_step}", style="dim" if check.state == "ok" else "")
        table.add_row(Text(check.check), Text(check.state, style=_STYLES[check.state]), found)
    Console().print(table)
    problems = sum(check.state == "problem" for check in checks)
    typer.echo(f"\n{format_count(problems, 'problem')}." if problems else "\nWhat is set up here works.")
