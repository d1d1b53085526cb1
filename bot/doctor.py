"""What `threadtree doctor` finds out about agents: is the program there, which version, does it start a session."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from bot.run.agents.driver import Launch, Opened
from bot.run.agents.opening import driver_for
from bot.run.agents.presets import NotInstalled, Preset, command_of

VERSION_SECONDS = 30.0
LaunchOf = Callable[[Preset, tuple[str, ...]], Launch]
"""How this command of a preset is started here: in the sandbox, in a scratch worktree, with a home of its own."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One agent as it is on this machine; `problem` with its next step is None where a session could be opened."""

    agent: str
    version: str | None
    tested_version: str
    problem: str | None


async def look_at(chosen: Preset, search_path: str, launch_of: LaunchOf) -> Finding:
    """Starts the agent twice, for its version and for a session; asks no model anything."""
    command = command_of(chosen, search_path)
    if isinstance(command, NotInstalled):
        return Finding(chosen.agent, None, chosen.tested, f"{command.reason} {command.next_step}")
    version = await _version(launch_of(chosen, (command[0], *chosen.version)))
    async with driver_for(chosen.agent, launch_of(chosen, command)) as driver:
        opened = await driver.open(None)
    problem = None if isinstance(opened, Opened) else f"{opened.reason} {opened.next_step}"
    return Finding(chosen.agent, version, chosen.tested, problem)


async def _version(launch: Launch) -> str | None:
    """The last line that the program says of itself."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *launch.argv,
            env=dict(launch.environment),
            cwd=launch.cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(VERSION_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return None
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else None
