"""The driver for each agent, with what has to be looked at before a session of it is opened."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import structlog

from bot.agents.acp import acp_agent
from bot.agents.driver import AgentDriver, AgentEvent, Launch, Limits, Opened, OpenFailed, Outcome
from bot.agents.presets import Preset, plugin_of_repository, preset

BeforeOpening = Callable[[str | None], Awaitable[OpenFailed | None]]
Clock = Callable[[], datetime]
Sleep = Callable[[float], Awaitable[None]]

_log = structlog.get_logger()


def driver_for(
    agent: str, launch: Launch, clock: Clock = lambda: datetime.now(UTC), sleep: Sleep = asyncio.sleep
) -> AbstractAsyncContextManager[AgentDriver]:
    """A driver for this value of AGENT. When the context ends, no process of the agent is left in its group."""
    chosen = preset(agent)
    if chosen is None:
        return acp_agent(launch)
    if agent == "claude":
        return _claude(launch, chosen)
    if agent == "gemini":
        waiting = partial(_outlast_the_minute, Path(launch.environment["HOME"]), clock, sleep)
        return _careful(acp_agent(launch, wishes=chosen.wishes), waiting)
    return _careful(acp_agent(launch, wishes=chosen.wishes), partial(_without_plugins, chosen, launch.cwd))


class _CarefulDriver:
    """A driver whose sessions open only when nothing speaks against it."""

    def __init__(self, driver: AgentDriver, before: BeforeOpening) -> None:
        self._driver = driver
        self._before = before

    async def open(self, resume: str | None) -> Opened | OpenFailed:
        return await self._before(resume) or await self._driver.open(resume)

    async def prompt(
        self,
        blocks: Sequence[str],
        limits: Limits,
        stop: asyncio.Event,
        on_event: Callable[[AgentEvent], None],
    ) -> Outcome:
        return await self._driver.prompt(blocks, limits, stop, on_event)

    async def close(self) -> None:
        await self._driver.close()


@asynccontextmanager
async def _careful(
    agent: AbstractAsyncContextManager[AgentDriver], before: BeforeOpening
) -> AsyncIterator[AgentDriver]:
    async with agent as driver:
        yield _CarefulDriver(driver, before)


def _claude(launch: Launch, chosen: Preset) -> AbstractAsyncContextManager[AgentDriver]:
    if find_spec("claude_agent_sdk") is None:
        failure = OpenFailed("The Claude Agent SDK is not installed.", f"Install it: {chosen.install}", "")

        async def refuse(_: str | None) -> OpenFailed:
            return failure

        return _careful(acp_agent(launch), refuse)
    from bot.agents.claude import claude_agent  # the extra `claude` is not always there

    return claude_agent(launch)


async def _without_plugins(chosen: Preset, worktree: Path, _: str | None) -> OpenFailed | None:
    found = await asyncio.to_thread(plugin_of_repository, chosen, worktree)
    if found is None:
        return None
    return OpenFailed(
        f"`{found}` of this repository is, or may name, a plugin of the agent, and {chosen.agent} runs plugins even "
        "where it is told not to.",
        f"Take `{found}` out of the branch, or choose another AGENT.",
        "",
    )


async def _outlast_the_minute(home: Path, clock: Clock, sleep: Sleep, resume: str | None) -> None:
    """Gemini loses a session that is loaded in the minute (UTC) in which it was made or last loaded.

    It writes a new file for every load, named by that minute and the session, over the one that is there.
    """
    if resume is None or not resume[:8].isalnum():
        return
    now = clock().astimezone(UTC)
    pattern = f".gemini/tmp/*/chats/session-{now:%Y-%m-%dT%H-%M}-{resume[:8]}.json*"
    if await asyncio.to_thread(lambda: any(home.glob(pattern))):
        _log.info("agent-waits-for-next-minute", session=resume)
        await sleep(60 - now.second)
