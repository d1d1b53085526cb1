"""`threadtree doctor`: a table for people, `--json` for scripts; exit status 1 if what is set up here cannot work."""

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bot.doctor.checks import Check, examine, known_settings
from bot.logs import configure_logs

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}
# What a shell gives for a process that a signal ended, with the signal's number.
_ENDED_BY = 128


def add_doctor(app: typer.Typer) -> None:
    """Adds the command `doctor`."""

    @app.command()
    def doctor(
        json: Annotated[bool, typer.Option("--json", help="Print the checks as a JSON array.")] = False,
    ) -> None:
        """Check the settings, the sandbox and the agents; asks no model anything and leaves nothing behind."""
        configure_logs(json=not sys.stderr.isatty(), level=logging.ERROR)
        with Console(stderr=True).status("Starting each agent that is installed …"):
            checks = asyncio.run(_until_stopped())
        if isinstance(checks, signal.Signals):
            raise typer.Exit(_ENDED_BY + checks)
        if json:
            typer.echo(orjson.dumps(checks, option=orjson.OPT_INDENT_2))
        else:
            _show(checks)
        if any(check.state == "problem" for check in checks):
            raise typer.Exit(1)


async def _until_stopped() -> list[Check] | signal.Signals:
    """The checks; or the signal that asked the process to end, once everything that was started is gone."""
    examining = asyncio.create_task(examine(known_settings()))
    signals: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        signals.append(number)
        if not examining.cancelling():  # a second one must not disturb the tidying up
            examining.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    await asyncio.wait({examining})
    return signals[0] if examining.cancelled() else examining.result()


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
    typer.echo(f"\n{problems} to mend." if problems else "\nWhat is set up here works.")
