"""Run a script of a repository until its end, its limit or a stop; nothing that it started keeps running."""

import asyncio
import os
import re
from asyncio.subprocess import STDOUT
from dataclasses import dataclass
from pathlib import Path

from bot.agents.driver import Launch
from bot.process import OutputTail, ProcessGroup, start

_OUTPUT_BYTES = 64 * 1024
# Colours, cursor movements and titles: https://man7.org/linux/man-pages/man4/console_codes.4.html
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Script:
    """A script, at a path that is the same in the cage, and the command that runs it."""

    path: Path
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """It ended by itself, or by a signal if `status` is negative. `output` is the end of what it wrote."""

    status: int
    output: str


@dataclass(frozen=True, slots=True)
class OutOfTime:
    """It was killed after `seconds`."""

    seconds: float
    output: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """It was killed because of a stop."""


def command_for(text: bytes, path: Path) -> tuple[str, ...]:
    """Return what runs a script with this text: the interpreter that its first line names, with one argument, as the
    kernel reads it, else sh. So the file needs no executable bit.
    """
    first = os.fsdecode(text.split(b"\n", 1)[0])
    named = first[2:].strip().split(maxsplit=1) if first.startswith("#!") and "\0" not in first else []
    return (*(named or ["/bin/sh"]), str(path))


def readable(output: bytes) -> str:
    """Return what a terminal still shows of this: no colours, and only the last version of an overwritten line."""
    text = _ESCAPES.sub("", output.decode(errors="replace"))
    lines = (line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
    return _CONTROLS.sub("", "\n".join(line.rstrip() for line in lines)).strip("\n")


async def run_script(launch: Launch, limit_seconds: float, stop: asyncio.Event) -> Ended | OutOfTime | Stopped:
    """Run the script in a process group of its own, which ends with it. Raises OSError if it cannot be started."""
    process = await start(launch.argv, launch.environment, launch.cwd, stderr=STDOUT)
    if process.stdout is None:
        raise RuntimeError("a script is started with a pipe")
    output = OutputTail(process.stdout, _OUTPUT_BYTES)
    waits = {asyncio.create_task(stop.wait()), asyncio.create_task(process.wait())}
    try:
        await asyncio.wait(waits, timeout=limit_seconds, return_when=asyncio.FIRST_COMPLETED)
        status, stopped = process.status, stop.is_set()
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.shield(_end(process, output))
    if status is not None:
        return Ended(status, readable(output.data))
    return Stopped() if stopped else OutOfTime(limit_seconds, readable(output.data))


async def _end(process: ProcessGroup, output: OutputTail) -> None:
    await process.terminate()
    await output.finish()
    await process.close()
