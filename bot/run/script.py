"""A script out of a repository: run until its end, its limit or a stop, and then nothing it started is left running."""

import asyncio
import os
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from bot.agents.driver import Launch

_OUTPUT_BYTES = 64 * 1024
_LAST_WORDS_SECONDS = 2.0
# Colours, cursor movements and titles: https://man7.org/linux/man-pages/man4/console_codes.4.html
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Script:
    """A script at the path that it has in a cage too, and the command that runs it."""

    path: Path
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """It ended by itself, or by a signal where `status` is negative. `output` is the end of what it wrote."""

    status: int
    output: str


@dataclass(frozen=True, slots=True)
class OutOfTime:
    """It was ended after `seconds`."""

    seconds: float
    output: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """It was ended because somebody asked for it."""


def command_for(text: bytes, path: Path) -> tuple[str, ...]:
    """What runs a script with this text: the interpreter its first line names with one argument, as the kernel reads
    it, else sh. So the file needs no executable bit, nor a file system that allows for it.
    """
    first = os.fsdecode(text.split(b"\n", 1)[0])
    named = first[2:].strip().split(maxsplit=1) if first.startswith("#!") and "\0" not in first else []
    return (*(named or ["/bin/sh"]), str(path))


def readable(output: bytes) -> str:
    """What a terminal would still show of this: no colours, of a line that was written over again the last."""
    text = _ESCAPES.sub("", output.decode(errors="replace"))
    lines = (line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
    return _CONTROLS.sub("", "\n".join(line.rstrip() for line in lines)).strip("\n")


async def run_script(launch: Launch, limit_seconds: float, stop: asyncio.Event) -> Ended | OutOfTime | Stopped:
    """Runs it in a process group of its own, which ends with it. Raises OSError if it cannot be started."""
    process = await _start(launch)
    stopping = asyncio.create_task(stop.wait())
    exited = asyncio.create_task(process.exited.wait())
    try:
        done, _ = await asyncio.wait({stopping, exited}, timeout=limit_seconds, return_when=asyncio.FIRST_COMPLETED)
        ended = process.exited.is_set()
    finally:
        stopping.cancel()
        exited.cancel()
        await asyncio.shield(process.end())
    if ended:
        return Ended(process.status, readable(process.output))
    return Stopped() if done else OutOfTime(limit_seconds, readable(process.output))


class _Process(asyncio.SubprocessProtocol):
    """Keeps the end of the output; tells the exit from the end of the pipe, which who left the group may hold open."""

    def __init__(self) -> None:
        self.output = b""
        self.exited = asyncio.Event()
        self._silent = asyncio.Event()
        self._released = asyncio.Event()
        self._transport: asyncio.SubprocessTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        self.output = (self.output + (data if isinstance(data, bytes) else data.encode()))[-_OUTPUT_BYTES:]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._silent.set()

    def process_exited(self) -> None:
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._released.set()

    @property
    def status(self) -> int:
        """Its exit status once it has exited."""
        return (self._transport.get_returncode() if self._transport else None) or 0

    async def end(self) -> None:
        """Ends the whole group, hears its last words and gives back what it held."""
        if self._transport is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._transport.get_pid(), signal.SIGKILL)
        await self.exited.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await self._silent.wait()
        self._transport.close()
        await self._released.wait()


async def _start(launch: Launch) -> _Process:
    loop = asyncio.get_running_loop()
    return await _uncancelled(
        loop.subprocess_exec(
            _Process,
            *launch.argv,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            env=dict(launch.environment),
            cwd=launch.cwd,
            start_new_session=True,
        )
    )


async def _uncancelled(starting: Coroutine[None, None, tuple[asyncio.SubprocessTransport, _Process]]) -> _Process:
    """A start that is cancelled half-way would leave its process to nobody."""
    task = asyncio.ensure_future(starting)
    try:
        return (await asyncio.shield(task))[1]
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if task.exception() is None:
            await asyncio.shield(task.result()[1].end())
        raise
