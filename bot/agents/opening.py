"""The driver for each agent, with the checks before a session of it is opened."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path, PurePath

import structlog

from bot.agents.driver import CannotOpenError, Launch
from bot.agents.presets import (
    Preset,
    SessionOptions,
    plugin_of_repository,
    preset,
    skills_of_repository,
    with_skills,
    without_skills,
)
from bot.agents.prompt_loop import AgentDriver
from bot.sandbox.untrusted_files import list_untrusted
from bot.thread import reasons

Clock = Callable[[], datetime]
Sleep = Callable[[float], Awaitable[None]]

_log = structlog.get_logger()


@asynccontextmanager
async def driver_for(
    agent: str, launch: Launch, clock: Clock = lambda: datetime.now(UTC), sleep: Sleep = asyncio.sleep
) -> AsyncIterator[AgentDriver]:
    """Yield a driver for this value of AGENT. When the context ends, the agent's process group has ended."""
    # In a thread: the first driver of an agent that is not the default one imports a library.
    async with aclosing(await asyncio.to_thread(_driver, agent, launch, clock, sleep)) as driver:
        yield driver


def load_library(agent: str) -> None:
    """Import what a driver for this value of AGENT needs, which takes a second: before there is anything else to do.

    What is not installed is told when a session is opened.
    """
    with contextlib.suppress(ImportError):
        import_module("bot.agents.claude" if agent == "claude" else "bot.agents.acp")


def _driver(agent: str, launch: Launch, clock: Clock, sleep: Sleep) -> AgentDriver:
    if agent == "claude":
        from bot.agents.claude import ClaudeDriver  # the extra `claude` is not always there

        return ClaudeDriver(launch)
    from bot.agents.acp import AcpDriver  # a process that starts no agent does not wait for this import

    chosen = preset(agent)
    if chosen is None:
        return AcpDriver(launch, options=SessionOptions(replay="unknown"))
    if agent == "gemini":
        waiting = partial(_wait_for_next_minute, Path(launch.environment["HOME"]), clock, sleep)
        return AcpDriver(launch, options=chosen.session_options, check=waiting)
    options = with_skills(chosen.session_options, launch.skills) if launch.skills else chosen.session_options
    return AcpDriver(launch, options=options, check=partial(_look_at_worktree, chosen, launch))


async def _look_at_worktree(chosen: Preset, launch: Launch, _: str | None) -> Mapping[str, str] | None:
    """Refuse plugins of the worktree, and switch its skills off: those of the default branch count."""
    if (found := await asyncio.to_thread(plugin_of_repository, chosen, launch.cwd)) is not None:
        raise CannotOpenError(*reasons.brings_plugin(chosen.agent, found))
    skills = await asyncio.to_thread(skills_of_repository, chosen, launch.cwd)
    if skills is None:
        raise CannotOpenError(*reasons.brings_skills(chosen.agent, chosen.skill_folders))
    return without_skills(launch.environment, skills) if skills else None


async def _wait_for_next_minute(home: Path, clock: Clock, sleep: Sleep, resume: str | None) -> None:
    """Wait where Gemini would lose the session: in the minute (UTC) in which it was made or last loaded.

    Gemini writes a new file for every load, named by that minute and the session, over an earlier one.
    """
    if resume is None or not resume[:8].isalnum():
        return
    now = clock().astimezone(UTC)
    if await asyncio.to_thread(_has_chat, home, f"session-{now:%Y-%m-%dT%H-%M}-{resume[:8]}.json"):
        _log.info("agent-waits-for-next-minute", session=resume)
        await sleep(60 - now.second)


def _has_chat(home: Path, beginning: str) -> bool:
    """Return whether Gemini has a chat with this beginning of its name in the HOME."""
    projects = PurePath(".gemini", "tmp")
    names: list[str] = []
    with contextlib.suppress(OSError):
        for project in list_untrusted(home, projects):
            with contextlib.suppress(OSError):
                names += list_untrusted(home, projects / project / "chats")
    return any(name.startswith(beginning) for name in names)
