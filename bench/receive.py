"""How fast deliveries are acknowledged: Threadtree commits them, Probot keeps them in memory, and a floor only inserts.

Probot is `probot run`, as it is deployed, which logs each request.

All servers run side by side, and each repetition loads one after the other: read the ratios, not the figures.
"""

import asyncio
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import asyncpg
import orjson

from bench.closed_loop import burst, closed_loop
from bench.deliveries import Pool
from bench.floor import TABLE
from bench.load import Answers, Load
from bench.servers import cpu_seconds, free_port, node, resident_mb, running
from bot.postgres.embedded import embedded_postgres
from bot.simulated.github.app import App
from tests.recorded.install import install, target_of

SECRET = "the bench's own secret"  # noqa: S105 -- of servers that live as long as the measurement
BOT_NAME = "threadtree"
PATH = "/webhooks/github"
CONNECTIONS = (16, 64)
BURST = 500
WARM_UP_SECONDS = 2.0
"""V8 compiles meanwhile what it runs often."""
PER_SECOND = 100
LEAST_RATE, LIMIT_MS, LIMIT_MB = 1.0, 50.0, 80.0
"""Limits: of the rate to Probot's, of p99 also while turns run, and of web's memory."""
SYNCS, PAGE_BYTES = 100, 8192
LOG_FILES = 32
KINDS = ("16 rate", "16 p99", "64 rate", "64 p99", "burst p99")
STORED = """
select count(*), count(*) filter (where state = 'received' and job.args is null)
from deliveries left join procrastinate_jobs job on job.args ->> 'guid' = guid
"""
HERE = Path(__file__).parent
PACKAGES = (HERE.parent / "tests/recorded", HERE / "probot")


@dataclass(frozen=True, slots=True)
class Length:
    """How often all is repeated, and how many seconds each load takes."""

    repetitions: int
    seconds: float


SHORT, LONG = Length(1, 1.5), Length(3, 2.5)


@dataclass(slots=True)
class Server:
    """One running server, and the load it gets."""

    name: str
    port: int
    pid: int
    pool: Pool


@dataclass(slots=True)
class Figures:
    """The figures of all repetitions by server and kind of load; their medians are read."""

    values: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    sync_ms: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    web_port: int = 0
    stored_by_web: int = 0

    def add(self, server: str, kind: str, value: float) -> None:
        self.values[server, kind].append(value)

    def of(self, server: str, kind: str) -> float:
        """Return the median."""
        return statistics.median(self.values[server, kind])

    def ratio(self, server: str, other: str, kind: str) -> float:
        """Return the median of the ratios of each repetition: what disturbs a repetition disturbs both."""
        pairs = zip(self.values[server, kind], self.values[other, kind], strict=True)
        return statistics.median(one / two for one, two in pairs)

    def over_a_limit(self) -> list[str]:
        """Return what is slower or larger than it may be."""
        rates = {f"rate at {many} to Probot's": self.ratio("web", "probot", f"{many} rate") for many in CONNECTIONS}
        times = {f"p99 of web at {many}": self.of("web", f"{many} p99") for many in CONNECTIONS}
        times["p99 of serve"] = self.of("serve", "p99")
        over = [f"{name}: {rate:.2f}, at least {LEAST_RATE}" for name, rate in rates.items() if rate < LEAST_RATE]
        over += [f"{name}: {ms:.0f} ms, at most {LIMIT_MS:.0f}" for name, ms in times.items() if ms > LIMIT_MS]
        if (memory := self.of("web", "MB")) > LIMIT_MB:
            over.append(f"memory of web: {memory:.0f} MB, at most {LIMIT_MB:.0f}")
        return over


async def measure(threadtree: Sequence[str], length: Length, parent: Path) -> Figures:
    """Measure all servers, Postgres' data below `parent`. `threadtree` is the command; it gets `web` and `serve`."""
    for folder in PACKAGES:
        if install(folder):
            raise RuntimeError(f"npm could not install what {folder} locks")
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="threadtree-bench-", dir=parent, ignore_cleanup_errors=True) as directory:
        folder = Path(directory)
        async with embedded_postgres(folder / "postgres", None) as database_url:
            await _check_durability(database_url)
            await _use_log_files(database_url)
            postmaster = int((folder / "postgres/data/postmaster.pid").read_text().split()[0])
            async with _web(threadtree, folder, database_url, "web") as web, _probot(folder) as probot:
                async with _floor(folder, database_url) as floor:
                    figures.web_port = web.port
                    figures.add("web", "MB at first", resident_mb(web.pid))
                    all_mention = Server("web, all mention", web.port, web.pid, _pool(1))
                    servers = (probot, web, all_mention, floor)
                    for server in servers:
                        _note(server, await closed_loop(server.port, server.pool.request, 16, WARM_UP_SECONDS), figures)
                    for _ in range(length.repetitions):
                        figures.sync_ms += _sync_ms(folder)
                        for server in servers:
                            await _acknowledge(server, length, figures, postmaster)
                figures.add("web", "MB", resident_mb(web.pid))
                for number in range(length.repetitions):
                    async with _serve(threadtree, folder / f"serve-{number}", database_url, number) as serve:
                        await _offer(serve, 2 * length.seconds, figures)
            await _check_committed(database_url, figures)
    return figures


async def _acknowledge(server: Server, length: Length, figures: Figures, postmaster: int) -> None:
    _note(server, await closed_loop(server.port, server.pool.request, 16, 0.3), figures)  # warm-up
    for connections in CONNECTIONS:
        before = cpu_seconds(server.pid), cpu_seconds(postmaster)
        count = await _load(server, connections, length.seconds, figures, str(connections))
        spent = cpu_seconds(server.pid) - before[0], cpu_seconds(postmaster) - before[1]
        figures.add(server.name, f"{connections} app us", spent[0] / count * 1e6)
        figures.add(server.name, f"{connections} pg us", spent[1] / count * 1e6)
    answers = await burst(server.port, server.pool.request, BURST)
    _note(server, answers, figures)
    figures.add(server.name, "burst p99", answers.percentile_ms(99))


async def _load(server: Server, connections: int, seconds: float, figures: Figures, kind: str) -> int:
    answers = await closed_loop(server.port, server.pool.request, connections, seconds)
    _note(server, answers, figures)
    count = len(answers.latencies_ms)
    figures.add(server.name, f"{kind} rate", count / seconds)
    figures.add(server.name, f"{kind} p99", answers.percentile_ms(99))
    return count


async def _offer(server: Server, seconds: float, figures: Figures) -> None:
    """Send an even load, of which one in ten asks for a turn."""
    load = Load(server.port)
    answers = await load.offer(lambda _: server.pool.request(), round(seconds * PER_SECOND), PER_SECOND)
    load.close()
    _note(server, answers, figures)
    figures.add(server.name, "p99", answers.percentile_ms(99))


def _note(server: Server, answers: Answers, figures: Figures) -> None:
    if server.port == figures.web_port:
        figures.stored_by_web += answers.statuses["202"]
    if answers.errors:
        figures.problems.append(f"{server.name}: {dict(answers.statuses)}")


def _sync_ms(folder: Path) -> list[float]:
    """Return how long pages took to reach the disk, one after the other: no commit is faster."""
    took = []
    with (folder / "sync").open("wb", buffering=0) as file:
        file.write(bytes(SYNCS * PAGE_BYTES))
        os.fsync(file.fileno())
        file.seek(0)
        for _ in range(SYNCS):
            began = perf_counter()
            file.write(b"x" * PAGE_BYTES)
            os.fdatasync(file.fileno())
            took.append((perf_counter() - began) * 1000)
    return took


def report(figures: Figures) -> bool:
    """Print the figures; return whether all was answered and committed, within the limits."""
    synced = statistics.quantiles(figures.sync_ms, n=100)
    print(f"ms until a page is on this disk: median {synced[49]:.2f}, p90 {synced[89]:.2f}, p99 {synced[98]:.2f}\n")
    print(f"{'':18} {'16: /s':>8} {'p99 ms':>7} {'64: /s':>8} {'p99 ms':>7} {'burst p99':>9} {'CPU us app + pg':>16}")
    servers = ("probot", "web", "web, all mention", "floor")
    for name in servers:
        one, two, three, four, five = (figures.of(name, kind) for kind in KINDS)
        cpu = f"{figures.of(name, '16 app us'):.0f} + {figures.of(name, '16 pg us'):.0f}"
        print(f"{name:18} {one:8.0f} {two:7.1f} {three:8.0f} {four:7.1f} {five:9.0f} {cpu:>16}")
    print("\nratios to Probot, which keeps deliveries in memory")
    for name in servers[1:]:
        ratio = [figures.ratio(name, "probot", k) for k in KINDS]
        print(f"{name:18} " + " ".join(f"{one:{width}.2f}" for one, width in zip(ratio, (8, 7, 8, 7, 9), strict=True)))
    spent = [
        figures.of(name, "16 app us") + figures.of(name, "16 pg us") for name in ("web", "web, all mention", "floor")
    ]
    print(f"\nCPU of a delivery, to the floor's: {spent[0] / spent[2]:.2f}, all mention: {spent[1] / spent[2]:.2f}")
    print(f"serve at {PER_SECOND} a second, while it decides and runs turns: p99 {figures.of('serve', 'p99'):.1f} ms")
    print(f"memory of web: {figures.of('web', 'MB at first'):.0f} MB, after all loads {figures.of('web', 'MB'):.0f} MB")
    problems = figures.problems + figures.over_a_limit()
    for problem in problems:
        print(problem, file=sys.stderr)
    return not problems


@asynccontextmanager
async def _web(command: Sequence[str], folder: Path, database_url: str, name: str) -> AsyncIterator[Server]:
    dsn, port = await _database(database_url, name), free_port()
    environment = _environment(dsn, port, folder / "data") | {"GITHUB_TOKEN": "unused"}
    migrated = await asyncio.create_subprocess_exec(*command, "migrate", env=os.environ | environment)
    if await migrated.wait():
        raise RuntimeError("The schema could not be made.")
    connection = await asyncpg.connect(dsn)
    try:
        if await connection.fetchval("select to_regclass('bot_names') is not null"):
            await connection.execute("insert into bot_names values ($1)", BOT_NAME)  # as the first worker does
    finally:
        await connection.close()
    async with running([*command, "web"], port, environment, folder / f"{name}.log") as pid:
        yield Server(name, port, pid, _pool(10))


@asynccontextmanager
async def _serve(command: Sequence[str], folder: Path, database_url: str, number: int) -> AsyncIterator[Server]:
    """Run the whole bot against a simulated GitHub; every request runs a turn of the scripted agent."""
    await asyncio.to_thread(folder.mkdir)
    dsn, port = await _database(database_url, f"serve_{number}"), free_port()
    async with _installation(folder) as told:
        environment = _environment(dsn, port, folder / "data") | {
            "GITHUB_API_URL": told["api_url"],
            "GITHUB_TOKEN": told["token"],
            "AGENT": "custom",
            "AGENT_COMMAND": f"{sys.executable} -P -m bot.simulated.agent",
            "AGENT_SANDBOX": "off",
            "MAX_TURNS_PER_PERSON_PER_DAY": "100000",
            "MAX_COMMENTS_PER_HOUR": "100000",
            "SHUTDOWN_GRACE_SECONDS": "0",
        }
        async with running([*command, "serve"], port, environment, folder / "serve.log") as pid:
            server = Server("serve", port, pid, _pool(10, told))
            await _until_a_turn_runs(server, dsn)
            yield server


@asynccontextmanager
async def _installation(folder: Path) -> AsyncIterator[Mapping[str, Any]]:
    github = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.installation", str(folder / "github")),
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    try:
        assert github.stdout is not None
        told: Mapping[str, Any] = orjson.loads(await github.stdout.readline())
        yield told
    finally:
        github.terminate()
        await github.wait()


async def _until_a_turn_runs(server: Server, dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        async with asyncio.timeout(60):
            while not await connection.fetchval("select exists (select from turns where state <> 'queued')"):
                await burst(server.port, server.pool.request, 1)
                await asyncio.sleep(0.2)
    finally:
        await connection.close()


@asynccontextmanager
async def _floor(folder: Path, database_url: str) -> AsyncIterator[Server]:
    dsn, port = await _database(database_url, "floor"), free_port()
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(TABLE)
    finally:
        await connection.close()
    command = [sys.executable, "-m", "bench.floor", dsn, str(port)]
    async with running(command, port, {"PYTHONPATH": str(HERE.parent)}, folder / "floor.log") as pid:
        yield Server("floor", port, pid, _pool(10))


@asynccontextmanager
async def _probot(folder: Path) -> AsyncIterator[Server]:
    packages = target_of(HERE / "probot") / "node_modules"
    port = free_port()
    command = [node(), str(packages / "probot/bin/probot.js"), "run", str(HERE / "probot/app.mjs")]
    key = App.create("probot", installation_id=1).private_key_pem
    environment = {
        "APP_ID": "1",
        "PRIVATE_KEY": key,
        "WEBHOOK_SECRET": SECRET,
        "HOST": "127.0.0.1",
        "PORT": str(port),
        "NODE_ENV": "production",
    }
    async with running(command, port, environment, folder / "probot.log") as pid:
        yield Server("probot", port, pid, _pool(10, path="/api/github/webhooks"))


def _pool(mention_every: int, told: Mapping[str, Any] | None = None, *, path: str = PATH) -> Pool:
    name = told["login"] if told else BOT_NAME
    return Pool(path, SECRET, f"@{name} say hello", mention_every, place=told)


def _environment(dsn: str, port: int, data: Path) -> dict[str, str]:
    return {
        "DATABASE_URL": dsn,
        "DATA_DIR": str(data),
        "HOST": "127.0.0.1",
        "PORT": str(port),
        "GITHUB_WEBHOOK_SECRET": SECRET,
    }


async def _database(database_url: str, name: str) -> str:
    """Make a database of the server and return its address."""
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(f'create database "{name}"')
    finally:
        await connection.close()
    return database_url.replace("/postgres?", f"/{name}?", 1)


async def _check_durability(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        fsync = await connection.fetchval("show fsync")
        synchronous = await connection.fetchval("show synchronous_commit")
    finally:
        await connection.close()
    if (fsync, synchronous) != ("on", "on"):
        raise RuntimeError(f"Postgres does not commit to disk: fsync={fsync} synchronous_commit={synchronous}")


async def _use_log_files(database_url: str) -> None:
    """Let Postgres have log files that it can use again, as it has after some hours: to make one stops all commits."""
    connection = await asyncpg.connect(database_url)
    try:
        for _ in range(LOG_FILES):
            await connection.execute("select pg_logical_emit_message(true, '', ''); select pg_switch_wal()")
        await connection.execute("checkpoint")
    finally:
        await connection.close()


async def _check_committed(database_url: str, figures: Figures) -> None:
    """Note deliveries that `web` has acknowledged and not stored, or stored without the job to decide on them."""
    connection = await asyncpg.connect(database_url.replace("/postgres?", "/web?", 1))
    try:
        rows, forgotten = await connection.fetchrow(STORED)
    finally:
        await connection.close()
    if (rows, forgotten) != (figures.stored_by_web, 0):
        figures.problems.append(f"{figures.stored_by_web} acknowledged, {rows} stored, {forgotten} without a job")
