"""The bot's processes of a round: each is started again soon after it has ended, as a service manager does."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import program
from tests.support.patience import eventually, until_true
from tests.support.processes import BotProcess, Deployment

LOOK_SECONDS = 0.02
END_SECONDS = 60.0


@dataclass(slots=True)
class Place:
    """One process of the bot, whichever instance runs now.

    `armed` is the file that names failpoints for it, `skew` the one that tells how wrong its clock is.
    """

    name: str
    command: str
    settings: dict[str, str]
    armed: Path
    skew: Path
    process: BotProcess | None = None
    restart_seconds: float = 0.0
    """The pause before the next start."""
    suspended: bool = False
    asked_to_end: bool = False

    @property
    def data_dir(self) -> Path:
        return Path(self.settings["DATA_DIR"])

    @property
    def is_web(self) -> bool:
        return self.command == "web"

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.is_running and not self.suspended

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False if there is no process."""
        if self.process is None or not self.process.is_running:
            return False
        try:
            self.process.send(number)
        except ProcessLookupError:
            return False
        self.asked_to_end |= number == signal.SIGTERM
        return True


class Places:
    """All processes of a round, kept alive until `stop`."""

    def __init__(self, here: Deployment, places: list[Place], rng: random.Random) -> None:
        self.all = places
        self.ended: list[str] = []
        """Starts that ended by themselves, with their status and last lines."""
        self.lives: list[tuple[BotProcess, float]] = []
        """The workers that were started, and when each ended."""
        self._here = here
        self._rng = rng
        self._stopping = False
        self._keepers: list[asyncio.Task[None]] = []

    @property
    def workers(self) -> list[Place]:
        return [place for place in self.all if not place.is_web]

    @contextmanager
    def started(self) -> Iterator[None]:
        """Keep the processes alive until `stop`, or until the block ends."""
        self._keepers = [asyncio.create_task(self._keep(place)) for place in self.all]
        try:
            yield
        finally:
            self._stopping = True
            for keeper in self._keepers:
                keeper.cancel()

    async def ready(self) -> None:
        """Wait until the web process and a worker are there."""
        web = self.all[0]
        await until_true(lambda: web.process is not None)
        assert web.process is not None
        await web.process.ready()

    async def _keep(self, place: Place) -> None:
        while not self._stopping:
            place.suspended = place.asked_to_end = False
            place.process = process = await self._here.start_program(
                *(program.__file__, str(place.armed), str(place.skew), place.command),
                command=place.name,
                **place.settings,
            )
            while process.is_running:
                await asyncio.sleep(LOOK_SECONDS)
            if not place.is_web:
                self.lives.append((process, time.time()))
            status = await process.ended()
            expected = (-signal.SIGKILL, 0) if place.asked_to_end else (-signal.SIGKILL,)
            if status not in expected and not self._stopping:
                self.ended.append(f"{place.name} ended with {status}:\n{await process.tail()}")
            await asyncio.sleep(place.restart_seconds)
            place.restart_seconds = self._rng.uniform(0, 0.4)

    def wake(self) -> None:
        """Continue every suspended process."""
        for place in self.all:
            if place.suspended:
                place.send(signal.SIGCONT)
                place.suspended = False

    async def stop(self) -> list[str]:
        """End all processes as an operator does; return what did not end well."""
        self._stopping = True
        problems = []
        for place in self.all:
            place.restart_seconds = 0
            place.send(signal.SIGTERM)
        for place, keeper in zip(self.all, self._keepers, strict=True):
            done, _ = await asyncio.wait({keeper}, timeout=END_SECONDS)
            if place.process is None:
                continue
            if not done:
                problems.append(f"{place.name} does not end on SIGTERM:\n{await place.process.tail()}")
                place.send(signal.SIGKILL)
            elif (status := await place.process.ended()) != 0:
                problems.append(f"{place.name} ended with {status} on SIGTERM:\n{await place.process.tail()}")
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        return problems


def gits_of(processes: Iterable[BotProcess]) -> list[int]:
    """Return the git processes that these have started, also in sandboxes and through agents."""
    found, waiting = [], [process.pid for process in processes if process.is_running]
    while waiting:
        pid = waiting.pop()
        with suppress(OSError):  # it has ended
            for thread in Path(f"/proc/{pid}/task").glob("*/children"):
                waiting += map(int, thread.read_text().split())
            if Path(f"/proc/{pid}/comm").read_text().startswith("git"):
                found.append(pid)
    return found


def end_process(pid: int) -> bool:
    """Kill a process that one of the bot's has started; False if it has ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def left_over(directory: Path) -> list[str]:
    """Return the processes that still work in this directory or were told of it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            about = command + (entry / "environ").read_bytes() + str((entry / "cwd").readlink()).encode()
            if int(entry.name) != os.getpid() and str(directory).encode() in about:
                found.append(f"{entry.name}: {command.replace(bytes(1), b' ').decode(errors='replace')[:200]}")
    return found


async def none_left_over(directory: Path, seconds: float) -> list[str]:
    """Wait for the end of all processes of this directory; return those that stay."""

    async def gone() -> bool:
        return not left_over(directory)

    with suppress(TimeoutError):
        await eventually(gone, seconds)
    return left_over(directory)
