"""What a turn costs beside its agent and GitHub: milliseconds and processes, by the size of the repository.

The time of a turn goes from the comment to the answer. Its overhead leaves out the time in which the agent or GitHub is
at work and the bot is not. GitHub is at work while it handles a request to its API or its git. The bot is at work while
it makes the prompt, and while a git of its own runs that does not talk to GitHub. Each minute housekeeping looks what
is to be done: what it starts for a repository is told apart, and its average is
added to what a turn starts.
"""

import asyncio
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import asyncpg

from bench.repository import git, stream
from bot.agents.acp import AcpDriver
from bot.demo.pair import agent_in_a_folder, running_bot, settings_for
from bot.postgres.embedded import embedded_postgres
from bot.sandbox import process
from bot.serve.parts import Surroundings
from bot.simulated.github.model import Issue, Repository
from bot.simulated.github.server import SimulatedGitHub
from bot.simulated.github.traffic import Traffic
from bot.store.migrate import migrate
from bot.tree.git.runner import Git
from bot.turn.prompting import make_prompt

PATIENCE_SECONDS = 120.0
MOST_PROCESSES = 60
RATIO_LIMIT = 1.5
"""Limit of many registered worktrees and of many branches, to the same repository without them."""
_TALKS_TO_GITHUB = ("fetch", "push", "ls-remote")
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
    Setting("small", "off", limits_ms=(500, 500)),
    Setting("small", "bwrap", limits_ms=(500, 500)),
)
SETTINGS = (
    *SHORT,
    Setting("2,000 worktrees", "off", worktrees=2000),
    Setting("5,000 branches", "off", branches=5000),
    Setting("20k files", "off", files=20_000),
    Setting("20k files", "bwrap", files=20_000),
    Setting("100k files", "bwrap", files=100_000, limits_ms=(1500, 1500)),
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: all its seconds, those beside agent and GitHub, and the processes that the bot started."""

    seconds: float
    overhead: float
    processes: tuple[str, ...]


@dataclass(slots=True)
class Figure:
    """The new and the following turns of one setting, and the processes of housekeeping meanwhile."""

    setting: Setting
    new: list[Turn] = field(default_factory=list)
    following: list[Turn] = field(default_factory=list)
    upkeep: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Meter:
    """What happened since the last turn, when others and when the bot were at work. Turns run one after the other."""

    others: list[tuple[float, float]] = field(default_factory=list)
    bot: list[tuple[float, float]] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    upkeep: list[tuple[str, list[str]]] = field(default_factory=list)
    """The processes of housekeeping, in all turns, with their arguments."""

    def noted(self, at_work: list[tuple[float, float]], work: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        """Return `work`, with each call noted in `at_work`."""

        async def call(*args: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return await work(*args, **options)
            finally:
                at_work.append((begin, time.perf_counter()))

        return call

    def turn(self, begin: float, end: float) -> Turn:
        """Return the turn of that time."""
        only_bot = end - begin - (_covered([*self.others, *self.bot], begin, end) - _covered(self.bot, begin, end))
        return Turn(end - begin, only_bot, tuple(self.processes))

    def clear(self) -> None:
        """Begin with another turn."""
        for seen in (self.others, self.bot, self.processes):
            seen.clear()


def _covered(spans: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Return the seconds between `begin` and `end` that at least one of the spans covers."""
    covered, seen = 0.0, begin
    for start, stop in sorted(spans):
        covered += max(0.0, min(stop, end) - max(start, seen))
        seen = max(seen, stop)
    return covered


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

    async def turn(self, thread: Issue, words: str) -> Turn:
        """Ask, wait for the answer, and return what the turn took."""
        known = len(thread.comments)
        self.meter.clear()
        begin = time.perf_counter()
        await self.github.person("maria").comment(thread, f"@{self.github.bot.login} {words}")

        def answer() -> str | None:
            bodies = [one.body for one in thread.comments[known:] if one.author.id == self.github.bot.id]
            return next((body for body in bodies if not body.startswith(_UNFINISHED)), None)

        body = await self.github.wait_for(answer, PATIENCE_SECONDS)
        turn = self.meter.turn(begin, time.perf_counter())
        if body is None or "1 file +" not in body:
            raise RuntimeError(f"the turn made no change: {body}")
        await self.github.settled()
        return turn


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
            for number, figure in enumerate(figures):
                own = f"{directory}/{number}/"
                figure.upkeep += [name for name, argv in meter.upkeep if any(own in word for word in argv)]
    return figures


@contextmanager
def _metered(meter: _Meter) -> Iterator[None]:
    run, opened = Git.run, AcpDriver.open
    metered_run = meter.noted(meter.bot, run)

    async def start(argv: Sequence[str], *args: Any, **options: Any) -> Any:
        words = list(argv)
        after_git = words[words.index("git") :]
        sandboxed = "bwrap " if any(word.endswith("bwrap") for word in words) else ""
        command = next(word for before, word in pairwise(after_git) if before != "-c" and not word.startswith("-"))
        if _is_upkeep(asyncio.current_task()):
            meter.upkeep.append((sandboxed + command, words))
        else:
            meter.processes.append(sandboxed + command)
        return await process.start(argv, *args, **options)

    async def timed_run(self: Git, *args: str, **options: Any) -> Any:
        command = next(arg for arg in args if not arg.startswith("-"))
        no_overhead = command in _TALKS_TO_GITHUB or _is_upkeep(asyncio.current_task())
        return await (run if no_overhead else metered_run)(self, *args, **options)

    async def open_(self: AcpDriver, *args: Any) -> Any:
        meter.processes.append("agent")
        return await opened(self, *args)

    with (
        patch("bot.tree.git.runner.start", start),
        patch("bot.turn.asking.make_prompt", meter.noted(meter.bot, make_prompt)),
        patch.object(Git, "run", timed_run),
        patch.object(AcpDriver, "open", meter.noted(meter.others, open_)),
        patch.object(AcpDriver, "prompt", meter.noted(meter.others, AcpDriver.prompt)),
        patch.object(Traffic, "__call__", meter.noted(meter.others, Traffic.__call__)),
    ):
        yield


def _is_upkeep(task: asyncio.Task[Any] | None) -> bool:
    """Return whether a task is housekeeping's own. Turns that it rings for have tasks of their own."""
    if task is None:
        return False
    return task.get_name() == "housekeeping" or getattr(task.get_coro(), "__name__", "") == "_repeat"


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
    git(remote, "fast-import", "--quiet", "--force", stdin=stream(setting.files))
    shown = subprocess.run(["git", "rev-parse", "main"], cwd=remote, capture_output=True, text=True, check=True)
    lines = (f"create refs/heads/other-{number} {shown.stdout.strip()}\n" for number in range(setting.branches))
    git(remote, "update-ref", "--stdin", stdin=map(str.encode, lines))


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
    """Print the medians and the processes; return whether all keep the limits."""
    heads = ("repository", "sandbox", "new ms", "next ms", "processes", "to small", "in all")
    print("{:>16} {:>7} {:>7} {:>8} {:>14} {:>12} {:>12}".format(*heads))
    small = {one.setting.sandbox: one for one in figures if one.setting.name == "small"}
    held = True
    for one in figures:
        setting, beside = one.setting, small.get(one.setting.sandbox, one)
        times = [1000 * _median(turns) for turns in (one.new, one.following)]
        in_all = [1000 * statistics.median(turn.seconds for turn in turns) for turns in (one.new, one.following)]
        ratios = [_median(a) / _median(b) for a, b in ((one.new, beside.new), (one.following, beside.following))]
        counts = [max(len(turn.processes) for turn in turns) for turns in (one.new, one.following)]
        over = [f"{ms:.0f} ms" for ms, limit in zip(times, setting.limits_ms, strict=True) if limit and ms > limit]
        upkeep = len(one.upkeep) / (len(one.new) + len(one.following))
        over += [f"{count + upkeep:.1f} processes" for count in counts if count + upkeep > MOST_PROCESSES]
        if setting.worktrees or setting.branches:
            over += [f"{ratio:.2f} times" for ratio in ratios if ratio > RATIO_LIMIT]
        held &= not over
        print(
            f"{setting.name:>16} {setting.sandbox:>7} {times[0]:7.0f} {times[1]:8.0f}"
            f" {counts[0]:>5}/{counts[1]:<3} +{upkeep:.1f}"
            f" {ratios[0]:6.2f}/{ratios[1]:<5.2f} {in_all[0]:6.0f}/{in_all[1]:<5.0f}"
            f"{'  over the limit: ' + ', '.join(over) if over else ''}"
        )
    for one in figures:
        for what, turns in (("new", one.new), ("next", one.following)):
            print(f"{one.setting.name}, {one.setting.sandbox}, {what}: {', '.join(turns[-1].processes)}")
        if one.upkeep:
            print(f"{one.setting.name}, {one.setting.sandbox}, housekeeping: {', '.join(one.upkeep)}")
    return held


def _median(turns: Sequence[Turn]) -> float:
    return statistics.median(turn.overhead for turn in turns)
