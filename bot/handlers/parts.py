"""What every decision is made with."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from bot.github.client import GitHub
from bot.handlers.context import Nodes
from bot.rules import Rules
from bot.store.database import Pool
from bot.thread.authority import Policy


@dataclass(frozen=True)
class Parts:
    """The database, GitHub, and what the operator chose; `rules` are those of a repository that chose nothing."""

    pool: Pool
    github: GitHub
    platform: str
    server_url: str
    policy: Policy
    rules: Rules
    nodes: Nodes
    clock: Callable[[], datetime]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
