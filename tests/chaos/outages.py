"""Faults of what the processes need: the database is away, without its socket, or locked; a clock is wrong."""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import asyncpg

LOCKED = ("turns", "sessions", "nodes", "worktrees", "outbox", "deliveries")
"""Tables that an operator's VACUUM FULL locks."""
CLOCK_STEPS_SECONDS = (-3600, -90, 0, 90, 700)


async def without_postgres(directory: Path, hold: Callable[[], Awaitable[None]], *, hangs: bool) -> None:
    """Let the server in `directory` hang, or be down without a new one, until `hold` returns."""
    supervisors = _processes_of(directory, "bot.postgres.supervisor")
    postmasters = _processes_of(directory, f"{directory}/data")
    stopped = supervisors
    if hangs:
        stopped += postmasters + [child for pid in postmasters for child in _children(pid)]
    _signal(stopped, signal.SIGSTOP)
    try:
        if not hangs:
            _signal(postmasters, signal.SIGKILL)
        await hold()
    finally:
        _signal(stopped, signal.SIGCONT)


async def without_socket(directory: Path, hold: Callable[[], Awaitable[None]]) -> None:
    """Take the socket of the server in `directory` away until `hold` returns. Open connections stay."""
    taken = []
    for socket in directory.rglob(".s.PGSQL.*"):
        if not socket.name.endswith((".lock", ".gone")):
            gone = socket.with_name(f"{socket.name}.gone")
            with suppress(FileNotFoundError):  # another fault has it
                socket.rename(gone)
                taken.append((socket, gone))
    try:
        await hold()
    finally:
        for socket, gone in taken:
            if socket.exists():  # a new server has made its own
                gone.unlink()
            else:
                gone.rename(socket)


async def with_a_locked_table(dsn: str, rng: random.Random, hold: Callable[[], Awaitable[None]]) -> None:
    """Lock a table against all reads and writes until `hold` returns."""
    with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
        connection = await asyncpg.connect(dsn, timeout=2)
        try:
            async with connection.transaction():
                await connection.execute(f"lock table {rng.choice(LOCKED)} in access exclusive mode", timeout=2)
                await hold()
        finally:
            await connection.close(timeout=2)


def step_clock(skew: Path, rng: random.Random) -> None:
    """Set the clock of the process that reads this file wrong, or right again."""
    skew.write_text(str(rng.choice(CLOCK_STEPS_SECONDS)))


async def until(seconds: float, calm: Callable[[], bool]) -> None:
    """Return after so many seconds, or as soon as the round is to become calm."""
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end and not calm():
        await asyncio.sleep(0.05)


def _processes_of(directory: Path, word: str) -> list[int]:
    """Return the processes that have the word and the directory in their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            if word.encode() in command and str(directory).encode() in command:
                found.append(int(entry.name))
    return found


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _signal(processes: list[int], number: signal.Signals) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
