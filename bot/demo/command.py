"""The demo: run the story on an embedded Postgres, the simulated GitHub and the bot."""

import asyncio
import secrets
import tempfile
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

from bot.demo import main_job, nothing_is_lost, waits_for_you
from bot.demo.pair import agent_in_a_folder, running_bot, settings_for
from bot.demo.report import Report
from bot.demo.stage import Stage, StoryBrokeError
from bot.postgres.embedded import embedded_postgres
from bot.sandbox.bwrap import Unusable, bwrap_for
from bot.serve.base import CannotStartError
from bot.simulated.github.server import SimulatedGitHub
from bot.store.migrate import migrate

TRY = """Write a comment below. maria may write to this repository, so the bot serves her.
Choose another name to see what a stranger gets.

This agent is a script. After `@{bot}` it understands these sentences, with words of your own in them:

| sentence | what happens |
|---|---|
| Please write “Closed on Mondays” into hours.txt. | the file is written; the bot runs the check, commits and pushes |
| Please add “Sunday: closed” to hours.txt. | the same, with a line at its end |
| Please remember that our colour is blue. | it is in the agent's conversation |
| What did I ask you to remember? | shows that the conversation goes on |
| Let our customers pay by card. | a plan, if `/plan` stands before it; `/approve` goes on |
| Wait until I stop you. | works until you write `/stop` |

The bot's own commands work too: `/status`, `/help`, `/pr`, `/reset-context`, `/worktree list`.
This page follows what happens.
"""


async def run_demo(path: str, sandbox: str, stopping: asyncio.Event, *, keep: bool, json: bool) -> bool:
    """Tell the story in a temporary directory; return whether all checks held. With `keep`, then await `stopping`.

    `path` and `sandbox` are PATH and AGENT_SANDBOX. Raises CannotStartError, SettingsError.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    report = Report(json=json)
    with tempfile.TemporaryDirectory(prefix="threadtree-demo-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        sandboxed = await asyncio.to_thread(choose_sandbox, sandbox, directory, path, report)
        async with AsyncExitStack() as stack:
            report.note("This takes about a minute. Starting Postgres …")
            dsn = await stack.enter_async_context(embedded_postgres(directory / "postgres", None))
            await migrate(dsn)
            report.note("Starting a simulated GitHub and the bot …")
            github = await stack.enter_async_context(
                SimulatedGitHub.running(directory / "github", lambda: datetime.now(UTC))
            )
            token = secrets.token_hex(16)
            settings = settings_for(github, directory / "data", path, ADMIN_TOKEN=token, **sandboxed)
            pair = await stack.enter_async_context(running_bot(github, settings, dsn))
            try:
                stage = await Stage.set_up(pair, report)
                await main_job.tell(stage)
                await nothing_is_lost.tell(stage)
                await waits_for_you.tell(stage)
            except StoryBrokeError as broken:
                report.note(f"The story ends here: {broken}.")
            report.ended(loop.time() - began)
            if not keep:
                report.note("Try it by hand: threadtree demo --keep, or make demo ARGS=--keep in a checkout.")
                report.note("For GitHub: see README.md, Connect a repository.")
            else:
                issue = await playground(github)
                report.note(f"\nask the bot here    {github.server_url}/{issue}")
                report.note(f"all threads         {github.server_url}/")
                report.note(f"the dashboard       {pair.url}/\nits token           {token}")
                report.note(f"database            {dsn}\nfiles               {directory}\nPress Ctrl-C to stop.")
                await stopping.wait()
    return report.held


async def playground(github: SimulatedGitHub) -> str:
    """Open an issue that says what can be tried, and return its address on the server."""
    repository = next(iter(github.world.repositories.values()))
    issue = await github.person("maria").open_issue(repository, "Try the bot here", TRY.format(bot=github.bot.login))
    return f"{repository.full_name}/issues/{issue.number}"


def choose_sandbox(wanted: str, directory: Path, path: str, report: Report) -> dict[str, str]:
    """Return the settings of the agent's sandbox, and report why there is none. Raises CannotStartError."""
    if wanted == "off":
        report.note("AGENT_SANDBOX=off: the agent runs without a sandbox.")
    else:
        found = bwrap_for(directory / "data", path).probe()
        if not isinstance(found, Unusable):
            report.note("The agent runs in a bubblewrap sandbox.")
            return {"AGENT_SANDBOX": wanted, "AGENT_COMMAND": agent_in_a_folder(directory)}
        if wanted != "auto":
            raise CannotStartError(f"AGENT_SANDBOX={wanted}: {found.why} {found.what_to_do}")
        report.note(f"The agent runs without a sandbox, which cannot be used here: {found.why}")
    return {"AGENT_SANDBOX": "off"}
