"""A bot and a simulated GitHub that are connected; the demo and the end-to-end tests use them."""

import asyncio
import secrets
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import bot
from bot.serve.parts import Surroundings
from bot.serve.process import run_both
from bot.settings import SERVE, Settings, load
from bot.simulated.github.server import SimulatedGitHub

SCRIPTED_AGENT = f"{sys.executable} -P -m bot.simulated.agent"
"""`-P`: Python must not import files of the worktree as the agent's modules."""


START = "import runpy\n\nrunpy.run_module('bot.simulated.agent', run_name='__main__', alter_sys=True)\n"


def agent_in_a_folder(directory: Path) -> str:
    """Copy the scripted agent into a folder and return its command; a sandbox shows this folder only."""
    folder, package = directory / "agent", Path(bot.__file__).parent
    shutil.copytree(package / "simulated" / "agent", folder / "bot" / "simulated" / "agent")
    for marker in ("__init__.py", "simulated/__init__.py"):
        shutil.copy(package / marker, folder / "bot" / marker)
    (folder / "__main__.py").write_text(START)
    return shlex.join((sys.executable, str(folder)))


@dataclass(frozen=True, slots=True)
class Pair:
    """The simulated GitHub, and the bot that runs against it."""

    github: SimulatedGitHub
    settings: Settings
    dsn: str
    url: str


def settings_for(github: SimulatedGitHub, data_dir: Path, path: str, **more: str) -> Settings:
    """Return the bot's settings for this GitHub; `path` is where programs are found, `more` holds any other setting.

    The sandbox is off unless `more` turns it on.
    """
    wanted = {
        "PATH": path,
        "LANG": "C.UTF-8",
        "DATA_DIR": str(data_dir),
        "HOST": "127.0.0.1",
        "PORT": "0",
        "NODE_NAME": "here",
        "GITHUB_API_URL": github.api_url,
        "GITHUB_WEBHOOK_SECRET": secrets.token_hex(16),
        "AGENT": "custom",
        "AGENT_COMMAND": SCRIPTED_AGENT,
        "AGENT_SANDBOX": "off",
        **more,
    }
    if "GITHUB_APP_ID" not in more:
        wanted["GITHUB_TOKEN"] = github.bot_token
    return load(wanted, dotenv=None, needs=SERVE)


@asynccontextmanager
async def running_bot(
    github: SimulatedGitHub, settings: Settings, dsn: str, surroundings: Surroundings | None = None
) -> AsyncIterator[Pair]:
    """Run web and worker in this process, with GitHub's webhook set to it."""
    stopping = asyncio.Event()
    addresses: asyncio.Queue[str] = asyncio.Queue()
    running: asyncio.Task[object] = asyncio.create_task(
        run_both(settings, dsn, stopping, surroundings or Surroundings(), addresses.put_nowait)
    )
    try:
        listening: asyncio.Task[str] = asyncio.create_task(addresses.get())
        await asyncio.wait([running, listening], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            listening.cancel()
            running.result()
        url = listening.result()
        github.set_webhook(f"{url}/webhooks/github", settings.webhook_secrets[0].decode())
        yield Pair(github, settings, dsn, url)
    finally:
        stopping.set()
        await running
