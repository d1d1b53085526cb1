"""`threadtree setup`: asks for what it needs, then connects the bot to GitHub."""

import re
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bot.cli.running import answered, fail, run, stop_signals
from bot.cli.setup.connect import OF_A_TOKEN, OF_AN_APP, Connecting
from bot.cli.setup.dotenv_file import EnvFile
from bot.cli.setup.manifest import code_in
from bot.cli.setup.service import program, write_unit
from bot.github.errors import Transient
from bot.settings import SettingsError, read
from bot.tasks import unless_stopped

_ADDRESS = (
    "The bot's public address, such as https://bot.example.org",
    "--url is missing: the bot's public address. Without one: --poll.",
)
_SECRET = re.compile(r"[A-Za-z0-9_.-]{10,1000}")
_INTERRUPTED = 130


def setup(
    repository: Annotated[
        str | None, typer.Argument(metavar="[OWNER/REPO]", help="With --token: whose webhook.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="The bot's public address, such as https://bot.example.org.", metavar="URL")
    ] = None,
    org: Annotated[str | None, typer.Option(help="Make the App for this organisation.", metavar="NAME")] = None,
    name: Annotated[str | None, typer.Option(help="Propose this name for the App.", metavar="NAME")] = None,
    operators: Annotated[
        str | None,
        typer.Option(help="Logins and ORG/TEAM who may sign in to the dashboard; default: the owner.", metavar="LIST"),
    ] = None,
    code: Annotated[
        bool, typer.Option("--code", help="Read the code, or the address with it, that GitHub led the browser to.")
    ] = False,
    token: Annotated[
        bool, typer.Option("--token", help="Connect one repository with a token, read from stdin, instead of an App.")
    ] = False,
    poll: Annotated[
        bool,
        typer.Option("--poll", help="Without --url: take deliveries from GitHub's log; it need not reach the bot."),
    ] = False,
    service: Annotated[
        bool, typer.Option("--service", help="Also write a systemd unit for this user, and print how to enable it.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace what .env sets, without asking.")] = False,
) -> None:
    """Connect the bot to GitHub and write .env: by an App that is made in the browser, or by a token."""
    settings, problems = read()
    if problems:
        raise SettingsError(problems)
    started = program() if service else None
    file = EnvFile(Path(".env"))
    connecting = Connecting(settings, file, typer.echo, operators)
    if poll and url:
        fail("--poll and --url exclude each other: with --poll the bot needs no address.", 2)
    is_polled = poll or (url is None and bool(file.values.get("POLL_INTERVAL_SECONDS")))  # it goes on as it was
    if token:
        full_name = repository or _asked("The repository, as OWNER/REPO", "OWNER/REPO is missing.")
        address = None if is_polled else url or _asked(*_ADDRESS)
        given = _secret("The token") or file.values.get("GITHUB_TOKEN") or ""
        if not _SECRET.fullmatch(given):
            fail("What was given is no token; give it on stdin, alone.", 2)
        _may_replace([one for one in file.set_among(OF_A_TOKEN) if file.values[one] != given], replace)
        work = connecting.token(given, full_name, address)
    elif file.values.get("GITHUB_APP_ID") and not (replace or code):
        work = connecting.arrival(url=url, poll=poll)
    else:
        if repository:
            fail("OWNER/REPO goes with --token; an App is installed on repositories on GitHub.", 2)
        address = None if is_polled else url or _asked(*_ADDRESS)
        _may_replace(file.set_among(OF_AN_APP), replace)
        pasted = code_in(_secret("The code, or the address")) if code else None
        if pasted is not None and not _SECRET.fullmatch(pasted):
            fail("What was given holds no code; give the address that GitHub led the browser to.", 2)
        work = connecting.app(address, org, name, pasted)

    try:
        done = run(_until_stopped(work), log_level="error")
    except Transient as problem:
        fail(f"{problem}. Check GITHUB_API_URL and the network, then run it again.")
    if not done:
        again = "The same command, without a token on stdin," if token else "`threadtree setup`"
        typer.echo(f"Stopped. {again} goes on with it.")
        raise typer.Exit(_INTERRUPTED)
    if started is not None:
        typer.echo(write_unit(settings, file.path.parent, started))


async def _until_stopped(work: Coroutine[Any, Any, None]) -> bool:
    async def done() -> bool:
        await work
        return True

    return await unless_stopped(stop_signals(), done()) is not None


def _asked(question: str, missing: str) -> str:
    """Return the answer of the person at the terminal; without one, end with what is missing."""
    if not sys.stdin.isatty():
        fail(missing, 2)
    return str(answered(lambda: typer.prompt(question)))


def _secret(question: str) -> str:
    """Return a secret, or nothing: from the person at the terminal, who does not see it, or the first line of stdin."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().strip()
    return str(answered(lambda: typer.prompt(question, hide_input=True, default="", show_default=False))).strip()


def _may_replace(names: Sequence[str], replace: bool) -> None:
    """End the command unless what .env sets may be replaced."""
    if not names or replace:
        return
    what = f".env sets {', '.join(names)}"
    if not sys.stdin.isatty():
        fail(f"{what}; run it with --replace to replace that.", 2)
    answered(lambda: typer.confirm(f"{what}. Replace that?", abort=True))
