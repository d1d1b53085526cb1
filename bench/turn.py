"""What a turn costs beside its agent: milliseconds and processes, by the size of the repository and its history."""

import asyncio
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import asyncpg

from bench.repository import git, stream
from bot import process
from bot.agents.acp import AcpDriver
from bot.compose.parts import Surroundings
from bot.demo.pair import agent_in_a_folder, running_bot, settings_for
from bot.postgres.embedded import embedded_postgres
from bot.simulated.github.model import Issue, Repository
from bot.simulated.github.server import SimulatedGitHub
from bot.store.migrate import migrate

PATIENCE_SECONDS = 120.0
MOST_PROCESSES = 15
RATIO_LIMIT = 1.3
"""Limit of many registered worktrees and of many branches, to the same repository without them."""
_UNFINISHED = ("Queued.", "Working on it")
_LIFTED = {"MAX_TURNS_PER_PERSON_PER_DAY": "100000", "MAX_COMMENTS_PER_HOUR": "100000"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One repository and sandbox. `limits_ms`: of a new worktree's turn and of a following one, None without."""

    name: str
    sandbox: str
    files: int = 10
    worktrees: int = 0
    branches: int = 0
    limits_ms: tuple[float | None, float | None] = (None, None)


SHORT = (
    Setting("small", "off", limits_ms=(250, 250)),
    Setting("small", "bwrap", limits_ms=(400, 400)),
)
SETTINGS = (
    *SHORT,
    Setting("2,000 worktrees", "off", worktrees=2000),
    Setting("5,000 branches", "off", branches=5000),
    Setting("20k files", "off", files=20_000),
    Setting("20k files", "bwrap", files=20_000, limits_ms=(None, 600)),
)


@dataclass(slots=True)
class Figure:
    """The turns of one setting: seconds beside the agent, and the processes, of new and of following turns."""

    setting: Setting
    new: list[tuple[float, int]] = field(default_factory=list)
    following: list[tuple[float, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Meter:
    """The seconds of agents and the number of processes since the last turn; turns run one after the other."""

    agent_seconds: float = 0.0
    processes: int = 0


class _Clock:
    """The real time, in which the bot's pauses between writes take none."""

    def __init__(self) -> None:
        self._ahead = timedelta(0)

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    async def sleep(self, seconds: float) -> None:
        self._ahead += timedelta(seconds=seconds)
        await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class _Bot:
    github: SimulatedGitHub
    repository: Repository
    meter: _Meter

    async def turn(self, thread: Issue, words: str) -> tuple[float, int]:
        """Ask, and return the seconds until the answer without those of the agent, and the number of processes."""
        known = len(thread.comments)
        self.meter.agent_seconds, self.meter.processes = 0.0, 0
        begin = time.perf_counter()
        await self.github.person("maria").comment(thread, f"@{self.github.bot.login} {words}")

        def answer() -> str | None:
            bodies = [one.body for one in thread.comments[known:] if one.author.id == self.github.bot.id]
            return next((body for body in bodies if not body.startswith(_UNFINISHED)), None)

        body = await self.github.wait_for(answer, PATIENCE_SECONDS)
        seconds = time.perf_counter() - begin - self.meter.agent_seconds
        if body is None or "1 file +" not in body:
            raise RuntimeError(f"the turn made no change: {body}")
        await self.github.settled()
        return seconds, self.meter.processes


async def measure(settings: Sequence[Setting], runs: int) -> list[Figure]:
    """Run turns of all settings in turn, after one that makes the clone."""
    figures = [Figure(setting) for setting in settings]
    meter = _Meter()
    with tempfile.TemporaryDirectory(prefix="threadtree-bench-", ignore_cleanup_errors=True) as directory:
        async with AsyncExitStack() as stack:
            stack.enter_context(_metered(meter))
            dsn = await stack.enter_async_context(embedded_postgres(Path(directory) / "postgres", None))
            bots = [
                await stack.enter_async_context(_bot(Path(directory, str(number)), dsn, one.setting, meter))
                for number, one in enumerate(figures)
            ]
            for run in range(runs):
                for bot, figure in zip(bots, figures, strict=True):
                    thread = await bot.github.person("maria").open_issue(bot.repository, f"Thread {run}")
                    figure.new.append(await bot.turn(thread, f"write new-{run}.txt: one"))
                    figure.following.append(await bot.turn(thread, f"append new-{run}.txt: two"))
    return figures


@contextmanager
def _metered(meter: _Meter) -> Iterator[None]:
    started, opened, prompted = process.start, AcpDriver.open, AcpDriver.prompt

    async def start(*args: Any, **options: Any) -> Any:
        meter.processes += 1
        return await started(*args, **options)

    async def timed(work: Any) -> Any:
        begin = time.perf_counter()
        try:
            return await work
        finally:
            meter.agent_seconds += time.perf_counter() - begin

    async def open_(self: AcpDriver, *args: Any) -> Any:
        meter.processes += 1
        return await timed(opened(self, *args))

    async def prompt(self: AcpDriver, *args: Any) -> Any:
        return await timed(prompted(self, *args))

    with (
        patch("bot.git.runner.start", start),
        patch.object(AcpDriver, "open", open_),
        patch.object(AcpDriver, "prompt", prompt),
    ):
        yield


@asynccontextmanager
async def _bot(directory: Path, dsn: str, setting: Setting, meter: _Meter) -> AsyncIterator[_Bot]:
    database = f"turn_{directory.name}"
    connection = await asyncpg.connect(dsn)
    await connection.execute(f"create database {database}")
    await connection.close()
    clock = _Clock()
    await asyncio.to_thread(directory.mkdir)
    more = {**_LIFTED, "AGENT_SANDBOX": setting.sandbox}
    if setting.sandbox != "off":
        more["AGENT_COMMAND"] = await asyncio.to_thread(agent_in_a_folder, directory)
    async with SimulatedGitHub.running(directory / "github", clock) as github:
        repository = await github.create_repository("acme/shop", {"README.md": "# shop\n"})
        repository.allow(github.person("maria"), "write")
        await asyncio.to_thread(_fill, repository.git.path, setting)
        path = "/usr/local/bin:/usr/bin:/bin"
        settings = settings_for(github, directory / "data", path, **more)
        own = urlsplit(dsn)._replace(path=f"/{database}").geturl()
        await migrate(own)
        async with running_bot(github, settings, own, Surroundings(clock, clock.sleep)):
            bot = _Bot(github, repository, meter)
            first = await github.person("maria").open_issue(repository, "First")
            await bot.turn(first, "write first.txt: one")
            await asyncio.to_thread(_register, directory / "data" / "repos" / "acme" / "shop.git", setting)
            yield bot


def _fill(remote: Path, setting: Setting) -> None:
    """Put the files of the setting on main, and make its branches."""
    git(remote, "fast-import", "--quiet", "--force", stdin=b"".join(stream(setting.files)))
    shown = subprocess.run(["git", "rev-parse", "main"], cwd=remote, capture_output=True, text=True, check=True)
    lines = [f"create refs/heads/other-{number} {shown.stdout.strip()}\n" for number in range(setting.branches)]
    git(remote, "update-ref", "--stdin", stdin="".join(lines).encode())


def _register(clone: Path, setting: Setting) -> None:
    """Register worktrees, as git does it, whose directories are away."""
    admin = next((clone / "worktrees").iterdir())
    for number in range(setting.worktrees):
        other = clone / "worktrees" / f"other-{number}"
        other.mkdir()
        shutil.copy(admin / "commondir", other)
        (other / "HEAD").write_text(f"ref: refs/heads/other-{number}\n")
        (other / "gitdir").write_text(f"{clone.parent}/other-{number}/.git\n")
        (other / "locked").write_text("away\n")


def report(figures: Sequence[Figure]) -> bool:
    """Print the medians; return whether all keep the limits."""
    print(f"{'repository':>16} {'sandbox':>7} {'new ms':>7} {'next ms':>8} {'processes':>10} {'to small':>12}")
    small = {one.setting.sandbox: one for one in figures if one.setting.name == "small"}
    held = True
    for one in figures:
        setting, beside = one.setting, small[one.setting.sandbox]
        times = [1000 * _median(turns) for turns in (one.new, one.following)]
        ratios = [_median(a) / _median(b) for a, b in ((one.new, beside.new), (one.following, beside.following))]
        counts = [max(count for _, count in turns) for turns in (one.new, one.following)]
        over = [f"{ms:.0f} ms" for ms, limit in zip(times, setting.limits_ms, strict=True) if limit and ms > limit]
        over += [f"{count} processes" for count in counts if count > MOST_PROCESSES]
        if setting.worktrees or setting.branches:
            over += [f"{ratio:.2f} times" for ratio in ratios if ratio > RATIO_LIMIT]
        held &= not over
        print(
            f"{setting.name:>16} {setting.sandbox:>7} {times[0]:7.0f} {times[1]:8.0f} {counts[0]:>5}/{counts[1]:<4}"
            f" {ratios[0]:6.2f}/{ratios[1]:<5.2f}{'  over the limit: ' + ', '.join(over) if over else ''}"
        )
    return held


def _median(turns: Sequence[tuple[float, int]]) -> float:
    return statistics.median(seconds for seconds, _ in turns)
