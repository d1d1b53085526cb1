"""What a person waits for: the first words, a distant GitHub, a large repository, large branches, five at once.

Each part asks a real `serve`, with agents in sandboxes, over a simulated GitHub. What git itself takes for the same is
measured in turn with it: read the ratios.
"""

import asyncio
import base64
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import orjson

from bench.asking import Asked, Stage, stage
from bench.repository import git, make_large
from bench.timed_agent import write_binaries
from bot.simulated.github.model import Issue, Repository
from bot.tree.clone.shared_blocks import can_share_blocks

LATENCY_SECONDS = 0.15
"""What a typical request to GitHub's API takes."""
BINARIES = 25
MB = 1e6
BY_HAND = ("core.bigFileThreshold=1m", "core.compression=0", "pack.window=0")
"""How git pushes large files fastest: it neither compresses them nor compares them with each other."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large the repositories and the pushes are, and how often each part is repeated."""

    files: int
    commits: int
    pushed_mb: int
    turns: int
    runs: int


SHORT = Size(files=2_000, commits=300, pushed_mb=50, turns=3, runs=1)
LONG = Size(files=20_000, commits=3_000, pushed_mb=200, turns=4, runs=3)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a figure, what stands beside it (`anchor`), and the limit.

    The limit is one of the ratio where there is an anchor, else of the figure; None without a goal.
    """

    what: str
    value: float
    unit: str
    limit: float | None = None
    anchor: float | None = None
    beside: str = ""

    @property
    def measured(self) -> float:
        """Return what the limit is about."""
        return self.value if self.anchor is None else self.value / self.anchor

    @property
    def verdict(self) -> str:
        """Return whether the limit is kept."""
        return "" if self.limit is None else "held" if self.measured <= self.limit else "MISSED"


@dataclass(slots=True)
class Table:
    """The rows, the lists of requests, the seconds of each part, and how busy the machine was."""

    size: Size
    rows: list[Row] = field(default_factory=list)
    requests: dict[str, list[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    load: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Run:
    """The stage, and the large repository that several parts use: made once, behind as many names as are asked for."""

    stage: Stage
    table: Table
    folder: Path
    names: int = 0
    cloned: Repository | None = None

    async def large(self) -> Repository:
        """Return the large repository under a new name, which the bot has no clone of."""
        size, shared = self.table.size, self.folder / "large.git"
        if not self.names:
            await asyncio.to_thread(make_large, shared, size.files, size.commits)
        self.names += 1
        made = await self.stage.repository(f"large-{self.names}")
        (made.git.path / "objects" / "info" / "alternates").write_text(f"{shared}/objects\n")
        tip = (shared / "refs" / "heads" / "main").read_text().strip()
        await made.git.run("update-ref", "refs/heads/main", tip)
        return made

    async def by_hand(self, directory: Path, *args: str) -> float:
        """Run git as a person would who may push; return the seconds."""
        token = base64.b64encode(f"x-access-token:{self.stage.here.maria.new_token()}".encode()).decode()
        header = ("http.extraHeader", f"Authorization: Basic {token}")
        variables = dict(zip(("GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0"), header, strict=True))
        return await asyncio.to_thread(git, directory, *args, environment={"GIT_CONFIG_COUNT": "1", **variables})

    async def clone_by_hand(self, repository: Repository, *args: str) -> tuple[Path, float, int]:
        """Clone as a person would; return where, the seconds, and the bytes over the network."""
        path, at = self.folder / "by-hand", time.monotonic()
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
        address = self.stage.github.clone_url(repository)
        seconds = await self.by_hand(self.folder, "clone", "-q", *args, address, str(path))
        return path, seconds, self.stage.wire.between(at, time.monotonic())


async def _words(run: _Run) -> list[Row]:
    """Ask an idle bot on new threads."""
    asked = await _turns(run, "words", run.table.size.turns, new=True)
    return [
        Row("👀 after the comment", _of(asked, "seen"), "s", 0.15),
        Row("first words on the thread, idle", _of(asked, "words"), "s", 0.4),
        Row("the agent's process begins", _of(asked, "begun"), "s"),
        Row("the agent has its prompt", _of(asked, "prompted"), "s"),
        Row("answer of a turn that changes a line", _of(asked, "answered"), "s"),
        Row("threadtree --help", median([await asyncio.to_thread(_help) for _ in asked]), "s", 0.3),
    ]


def _help() -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "bot", "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


async def _trips(run: _Run) -> list[Row]:
    """Ask where each request to GitHub takes a while, git's too: on new threads, and again on one of them."""
    run.stage.github.latency_seconds, rows = LATENCY_SECONDS, []
    for name, new in (("new thread", True), ("next turn", False)):
        asked = await _turns(run, "trips", run.table.size.turns, new=new)
        run.table.requests[name] = asked[-1].listed()
        rows += [
            Row(f"{LATENCY_SECONDS * 1000:.0f} ms a request, {name}: the agent begins", _of(asked, "begun"), "s", 0.6),
            Row("… requests in a row until 👀", _of(asked, "seen_in_a_row"), "", 2),
            Row("… requests in a row before the agent", _of(asked, "in_a_row"), "", 2),
            Row("… the agent has its prompt", _of(asked, "prompted"), "s"),
            Row("… first words on the thread", _of(asked, "words"), "s"),
            Row("… answer", _of(asked, "answered"), "s"),
            Row("… requests of the turn", median(len(one.requests) for one in asked), ""),
        ]
    run.stage.github.latency_seconds = 0.0
    return rows


async def _clone(run: _Run) -> list[Row]:
    """Ask on a repository without a clone, in turn with a clone of its last commit by hand."""
    ours: list[Asked] = []
    by_hand: list[tuple[float, float]] = []
    for _ in range(run.table.size.runs):
        run.cloned = repository = await run.large()
        path, seconds, size = await run.clone_by_hand(repository, "--depth", "1")
        by_hand.append((seconds, size))
        await asyncio.to_thread(shutil.rmtree, path)
        ours.append(await run.stage.ask(await run.stage.issue(repository)))
        await run.stage.rest()
    seconds, size = map(median, zip(*by_hand, strict=True))
    beside = "git clone --depth 1"
    return [
        Row("first request without a clone: the agent begins", _of(ours, "begun"), "s", 0.9, seconds, beside),
        Row("… over the network before it", _of(ours, "received") / MB, "MB", 1.05, size / MB, beside),
        Row("… answer", _of(ours, "answered"), "s"),
    ]


async def _branch(run: _Run) -> list[Row]:
    """Ask on a thread after a colleague's push to another branch, in turn with requests without one."""
    repository = await run.stage.repository("branches")
    for setting in (("core.compression", "0"), ("fastimport.unpackLimit", "1")):
        await repository.git.run("config", *setting)
    thread = await run.stage.issue(repository)
    await run.stage.ask(thread)
    without, beside = list[Asked](), list[Asked]()
    for number in range(run.table.size.runs):
        await run.stage.rest()
        without.append(await run.stage.ask(thread))
        size = round(run.table.size.pushed_mb * MB / BINARIES)
        files = {f"{one}.bin": os.urandom(size) for one in range(BINARIES)}
        await run.stage.here.maria.push(repository, f"colleague-{number}", files, "Images")
        await run.stage.rest()
        beside.append(await run.stage.ask(thread))
    extra = [_of(beside, name) - _of(without, name) for name in ("begun", "received")]
    pushed = f"{run.table.size.pushed_mb} MB on a branch it does not need"
    return [
        Row("next turn without a push: the agent begins", _of(without, "begun"), "s"),
        Row(f"after {pushed}: later by", extra[0], "s", 0.3),
        Row("… more over the network before it", extra[1] / MB, "MB", 1.0),
    ]


async def _push(run: _Run) -> list[Row]:
    """Ask an agent for large binaries, in turn with a commit and a push of such by hand."""
    ours, by_hand = list[float](), list[float]()
    size = round(run.table.size.pushed_mb * MB / BINARIES)
    settings = [word for setting in BY_HAND for word in ("-c", setting)]
    name = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    for number in range(min(run.table.size.runs, 2)):
        repository = await run.stage.repository(f"assets-{number}")
        thread = await run.stage.issue(repository)
        await run.stage.ask(thread)
        path, *_ = await run.clone_by_hand(repository)
        await asyncio.to_thread(write_binaries, path / "assets", BINARIES, size)
        await run.stage.rest()
        commands = (("add", "-A"), (*name, "commit", "-qm", "Images"), ("push", "-q", "origin", "HEAD:images"))
        by_hand.append(sum([await run.by_hand(path, *settings, *command) for command in commands]))
        await run.stage.rest()
        asked = await run.stage.ask(thread, f"append notes.txt: two\nbinaries {BINARIES} {size}")
        ours.append(asked.answered - asked.ended)
        if not (repository.git.path / "refs" / "heads" / "threadtree" / f"issue-{thread.number}").exists():
            raise RuntimeError("nothing was pushed")
        await run.stage.rest()
    what = f"{run.table.size.pushed_mb} MB of new binaries: agent's end to answer"
    return [Row(what, median(ours), "s", 1.3, median(by_hand), "git add, commit, push by hand")]


async def _five(run: _Run) -> list[Row]:
    """Ask on five new threads of a large repository at once; see what disk they take."""
    if (repository := run.cloned) is None:
        repository = await run.large()
        await run.stage.ask(await run.stage.issue(repository))
    begun, seen, disk, threads = list[float](), list[float](), list[float](), list[Issue]()
    data_dir = run.stage.here.data_dir
    shares = await asyncio.to_thread(can_share_blocks, data_dir)
    for _ in range(min(run.table.size.runs, 2)):
        threads = [await run.stage.issue(repository) for _ in range(5)]
        await run.stage.rest()
        before = await asyncio.to_thread(_used_mb, data_dir, shares)
        asked = await asyncio.gather(*map(run.stage.ask, threads))
        begun.append(max(one.begun for one in asked))
        seen.append(max(one.seen for one in asked))
        await run.stage.rest()
        if shares:
            await run.stage.shared_blocks()
        disk.append((await asyncio.to_thread(_used_mb, data_dir, shares) - before) / 5)
    checkout = data_dir / f"worktrees/{repository.full_name}/issue-{threads[0].number}"
    size = await asyncio.to_thread(_used_mb, checkout, False)
    where = f"on {_kind(data_dir)}, {'once its blocks are shared' if shares else 'which cannot share blocks'}"
    return [
        Row("five new threads at once: the last agent begins", median(begun), "s", 4.0),
        Row("… the last 👀", median(seen), "s", 1.5),
        Row(f"disk for a further thread of {size:.0f} MB, {where}", median(disk), "MB", 60.0 if shares else None),
    ]


async def _memory(run: _Run) -> list[Row]:
    """Let two agents wait, and see what the bot needs beside them."""
    repository = await run.stage.repository("memory")
    await run.stage.ask(await run.stage.issue(repository))
    await run.stage.beside_each_agent(repository, 2)  # from now on everything is loaded
    return [Row("memory beside each agent", await run.stage.beside_each_agent(repository, 2), "MB", 10.0)]


PARTS: Mapping[str, Callable[[_Run], Awaitable[list[Row]]]] = {
    "words": _words,
    "trips": _trips,
    "clone": _clone,
    "branch": _branch,
    "push": _push,
    "five": _five,
    "memory": _memory,
}


async def _turns(run: _Run, name: str, count: int, *, new: bool) -> list[Asked]:
    """Ask one after the other: each time on a new thread, or always on the same; the first request makes the clone."""
    repository = run.stage.github.world.repository(f"acme/{name}") or await run.stage.repository(name)
    thread = await run.stage.issue(repository)
    await run.stage.ask(thread)
    asked = []
    for _ in range(count):
        await run.stage.rest()
        asked.append(await run.stage.ask(await run.stage.issue(repository) if new else thread))
    return asked


def _of(asked: Sequence[Asked], name: str) -> float:
    return float(median(getattr(one, name) for one in asked))


def _kind(directory: Path) -> str:
    """Return the kind of a file system."""
    shown = subprocess.run(["stat", "-f", "-c", "%T", directory], capture_output=True, check=True)
    return shown.stdout.decode().strip()


def _used_mb(directory: Path, shares: bool) -> float:
    """Return what is used below the directory; where files share blocks, on its whole file system."""
    if shares:
        os.sync()
        return shutil.disk_usage(directory).used / MB
    shown = subprocess.run(["du", "-s", "--block-size=1000", directory], capture_output=True, check=False)
    return int(shown.stdout.split()[0]) / 1000


async def measure(size: Size, parts: Sequence[str], parent: Path | None, file: Path | None) -> Table:
    """Measure these parts, everything below `parent`; print each part's rows, and write the table to `file` as JSON."""
    table = Table(size, load=[os.getloadavg()[0]])
    print(f"{size.files:,} files, {size.commits:,} commits; agents in the sandbox; two at once", flush=True)
    async with stage(parent) as running:
        run = _Run(running, table, running.here.directory)
        for name in parts:
            begin = time.monotonic()
            rows = await PARTS[name](run)
            table.rows += rows
            table.seconds[name] = time.monotonic() - begin
            table.load.append(os.getloadavg()[0])
            _tell(table, rows, file)
    return table


def _tell(table: Table, rows: Sequence[Row], file: Path | None) -> None:
    print(*map(_line, rows), sep="\n", flush=True)
    if file is not None:
        known = [{**asdict(row), "measured": row.measured, "verdict": row.verdict} for row in table.rows]
        file.write_bytes(orjson.dumps({**asdict(table), "rows": known}, option=orjson.OPT_INDENT_2))


def _line(row: Row) -> str:
    goal = "" if row.limit is None else f"≤ {row.limit:g}" + (" x" if row.anchor is not None else f" {row.unit}")
    ratio = "" if row.anchor is None else f"{row.measured:5.2f} x {row.beside} ({row.anchor:.2f} {row.unit})"
    return f"{row.what:66} {row.value:8.2f} {row.unit:3} {goal:9} {row.verdict:7} {ratio}".rstrip()


def report(table: Table, *, listed: bool) -> bool:
    """Print the lists of requests and how long the parts took; return whether all limits are kept."""
    for name, lines in table.requests.items() if listed else ():
        print(f"\n{name}, requests to GitHub in order:", *lines, sep="\n  ")
    print("seconds of the parts:", ", ".join(f"{name} {seconds:.0f}" for name, seconds in table.seconds.items()))
    print("load of the machine meanwhile:", ", ".join(f"{load:.1f}" for load in table.load))
    return all(row.verdict != "MISSED" for row in table.rows)
