"""A bot and a GitHub that know each other: what the demo and the end-to-end tests tell their stories with."""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bot import compose
from bot.compose import Role, Surroundings
from bot.settings import SERVE, Settings, load
from bot.simulated.github.server import SimulatedGitHub

SCRIPTED_AGENT = f"{sys.executable} -P -m bot.simulated.agent"
"""`-P`: what lies in the worktree must not be imported as the agent."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The simulated GitHub, and the bot that runs against it."""

    github: SimulatedGitHub
    settings: Settings
    dsn: str
    url: str


def settings_for(github: SimulatedGitHub, data_dir: Path, path: str, **more: str) -> Settings:
    """The bot's settings against this GitHub; `path` is where programs are found, `more` any other setting."""
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
        **more,
    }
    if "GITHUB_APP_ID" not in more:
        wanted["GITHUB_TOKEN"] = github.bot_token
    return load(wanted, dotenv=None, needs=SERVE)


@asynccontextmanager
async def running_bot(
    github: SimulatedGitHub, settings: Settings, dsn: str, surroundings: Surroundings | None = None
) -> AsyncIterator[Pair]:
    """The bot as `threadtree serve` runs it, in this process, with GitHub's webhook set to it."""
    stopping = asyncio.Event()
    addresses: asyncio.Queue[str] = asyncio.Queue()
    bot: asyncio.Task[object] = asyncio.create_task(
        compose.run(
            settings,
            dsn,
            frozenset({Role.WEB, Role.WORKER}),
            stopping,
            surroundings=surroundings,
            on_listening=addresses.put_nowait,
        )
    )
    try:
        listening: asyncio.Task[str] = asyncio.create_task(addresses.get())
        await asyncio.wait([bot, listening], return_when=asyncio.FIRST_COMPLETED)
        if bot.done():
            listening.cancel()
            bot.result()
        url = listening.result()
        github.set_webhook(f"{url}/webhooks/github", settings.webhook_secrets[0].decode())
        yield Pair(github, settings, dsn, url)
    finally:
        stopping.set()
        await bot
