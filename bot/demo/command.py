"""The demo: run the story on an embedded Postgres, the simulated GitHub and the bot."""

import asyncio
import secrets
import shutil
import tempfile
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

from bot.demo.pair import agent_in_a_folder, running_bot, settings_for
from bot.demo.report import Report
from bot.demo.stage import StoryBrokeError
from bot.demo.story import tell
from bot.postgres.embedded import embedded_postgres
from bot.simulated.github.server import SimulatedGitHub
from bot.store.migrate import migrate


async def run_demo(path: str, stopping: asyncio.Event, *, keep: bool, json: bool) -> bool:
    """Tell the story in a temporary directory; return whether all checks held. With `keep`, then await `stopping`."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    report = Report(json=json)
    with tempfile.TemporaryDirectory(prefix="threadtree-demo-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        async with AsyncExitStack() as stack:
            report.note("Starting Postgres …")
            dsn = await stack.enter_async_context(embedded_postgres(directory / "postgres", None))
            await migrate(dsn)
            report.note("Starting a simulated GitHub and the bot …")
            github = await stack.enter_async_context(
                SimulatedGitHub.running(directory / "github", lambda: datetime.now(UTC))
            )
            if shutil.which("bwrap", path=path):
                report.note("The agent runs in a bubblewrap sandbox.")
                caged = {"AGENT_SANDBOX": "bwrap", "AGENT_COMMAND": agent_in_a_folder(directory)}
            else:
                report.note("bubblewrap is not installed here, so the agent runs without its sandbox.")
                caged = {}
            token = secrets.token_hex(16)
            settings = settings_for(github, directory / "data", path, ADMIN_TOKEN=token, **caged)
            pair = await stack.enter_async_context(running_bot(github, settings, dsn))
            try:
                await tell(pair, report)
            except StoryBrokeError as broken:
                report.note(f"The story ends here: {broken}.")
            report.ended(loop.time() - began)
            if keep:
                report.note(f"\nthe threads         {github.server_url}/ (open an issue or comment there)")
                report.note(
                    "its agent obeys     @threadtree-bot write FILE: TEXT · plan A | B · say TEXT · hang · fail WHY"
                )
                report.note(f"the dashboard       {pair.url}/\nits token           {token}")
                report.note(f"database            {dsn}\nfiles               {directory}\nPress Ctrl-C to stop.")
                await stopping.wait()
    return report.held
