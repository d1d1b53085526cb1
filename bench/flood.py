"""How fast `threadtree serve` answers while an agent floods each of its channels, and strangers flood its doors.

The processes, GitHub and the database are those of the end-to-end tests; each flood stands beside the idle process of
the same run, because a machine is never idle itself.
"""

import asyncio
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bench import strangers
from bench.deliveries import Deliveries
from bench.load import Answers, Load
from bot.postgres.embedded import embedded_postgres
from tests.support.patience import eventually
from tests.support.processes import SECRET, Deployment, deployment, processes_in

CHANNELS = ("stdout", "line", "stderr", "updates", "files", "answer")
LIMIT_MS = 100.0
PER_SECOND = 20
SAMPLE_SECONDS = 0.2
UNFINISHED = "exists (select from turns where state in ('queued', 'running'))"
READYZ = b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
AGENT = shlex.join((sys.executable, "-P", str(Path(__file__).with_name("flooding_agent.py"))))


@dataclass(frozen=True, slots=True)
class Figure:
    """What the process answered during one flood, and the memory (MB) before, at most meanwhile, and after."""

    name: str
    readyz: Answers
    acknowledged: Answers
    before_mb: float
    peak_mb: float
    after_mb: float

    @property
    def errors(self) -> int:
        return self.readyz.errors + self.acknowledged.errors

    @property
    def p99_ms(self) -> float:
        return max(self.readyz.percentile_ms(99), self.acknowledged.percentile_ms(99))


async def measure(seconds: int) -> AsyncIterator[Figure]:
    """Yield the figure of the idle process, then one for each flood. Each takes `seconds` and some for its end."""
    with tempfile.TemporaryDirectory(prefix="threadtree-bench-", ignore_cleanup_errors=True) as directory:
        async with (
            embedded_postgres(Path(directory) / "postgres", None) as database_url,
            deployment(Path(directory), database_url, interpreters=True) as here,
        ):
            here.tolerated = ""  # the floods end in errors, which the bot logs
            here.environment["AGENT_COMMAND"] = AGENT
            process = await here.start_listening()
            await process.ready()
            probe = _Probe(process.pid, urlsplit(await process.url()).port or 0, here, seconds)
            try:
                await probe.measure("warm-up")
                yield await probe.measure("idle")
                for channel in CHANNELS:
                    async with _flooding_agent(here, channel):
                        yield await probe.measure(f"agent floods: {channel}")
                for kind in strangers.KINDS:
                    async with _strangers(kind, probe.port):
                        yield await probe.measure(f"strangers: {kind}")
                yield await probe.measure("idle again")
            finally:
                probe.close()


def report(figures: list[Figure]) -> bool:
    """Print the figures; return whether all was answered, within LIMIT_MS or twice the idle time if that is more."""
    idle = next(figure for figure in figures if figure.name == "idle")
    limit = max(LIMIT_MS, 2 * idle.p99_ms)
    holds = all(not figure.errors and figure.p99_ms <= limit for figure in figures)
    print(f"at most {limit:.0f} ms (p99): {'kept' if holds else 'exceeded'}")
    return holds


def heading() -> str:
    """Return the heading of the lines."""
    return (
        f"{'':24} {'/readyz':>17} {'acknowledged':>17} {'errors':>7} {'memory, MB':>22}\n"
        f"{'':24} {'p50 ms':>8} {'p99 ms':>8} {'p50 ms':>8} {'p99 ms':>8} {'':7} {'before':>8} {'most':>6} {'after':>6}"
    )


def line(figure: Figure) -> str:
    """Return the figure as one line."""
    times = (answers.percentile_ms(p) for answers in (figure.readyz, figure.acknowledged) for p in (50, 99))
    said = dict(figure.readyz.statuses + figure.acknowledged.statuses) if figure.errors else ""
    return (
        f"{figure.name:24} {' '.join(f'{ms:8.1f}' for ms in times)} {figure.errors:7} "
        f"{figure.before_mb:8.0f} {figure.peak_mb:6.0f} {figure.after_mb:6.0f} {said}"
    ).rstrip()


class _Probe:
    """Requests for /readyz and signed deliveries that mention nobody, evenly spaced, to one process."""

    def __init__(self, pid: int, port: int, here: Deployment, seconds: int) -> None:
        self.port = port
        self._pid, self._here, self._seconds = pid, here, seconds
        self._load = Load(port)
        self._deliveries = Deliveries("/webhooks/github", SECRET.encode(), "no-bot-of-this-name")
        self._sent = 0

    async def measure(self, name: str) -> Figure:
        count, first = self._seconds * PER_SECOND, self._sent
        self._sent += count
        before, peak = self._memory_mb(), 0.0

        async def sample() -> None:
            nonlocal peak
            while True:
                peak = max(peak, self._memory_mb())
                await asyncio.sleep(SAMPLE_SECONDS)

        sampling = asyncio.create_task(sample())
        try:
            readyz, acknowledged = await asyncio.gather(
                self._load.offer(lambda _: READYZ, count, PER_SECOND),
                self._load.offer(lambda number: self._deliveries.request(first + number), count, PER_SECOND),
            )
        finally:
            sampling.cancel()
        return Figure(name, readyz, acknowledged, before, peak, self._memory_mb())

    def close(self) -> None:
        self._load.close()

    def _memory_mb(self) -> float:
        """Return the resident memory of `serve` and of the processes of the bot that it started, agents left out."""
        agents = set(processes_in(self._here.data_dir / "worktrees"))
        return sum(_resident_mb(pid) for pid in _with_children(self._pid) if pid not in agents)


def _with_children(pid: int) -> list[int]:
    """Return the process and all below it that run this interpreter."""
    found = [pid]
    for parent in found:
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        except OSError:
            continue  # it has ended
        found += [int(child) for child in children if _is_python(int(child))]
    return found


def _is_python(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").readlink() == Path(sys.executable).resolve()
    except OSError:
        return False


def _resident_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


@asynccontextmanager
async def _flooding_agent(here: Deployment, channel: str) -> AsyncIterator[None]:
    """Ask for a flood in a new thread, wait for its agent, and stop it at the end as a person would."""
    issue = await here.ask(channel)

    async def begun() -> bool:
        return bool(here.agents_in()) or not await here.value(f"select {UNFINISHED}")

    await here.until("select exists (select from requests where text like '%' || $1)", channel)
    await eventually(begun)
    yield
    await here.ask("/stop", issue)
    await here.until(f"select not {UNFINISHED}")
    await here.no_agents()


@asynccontextmanager
async def _strangers(kind: str, port: int) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.strangers", kind, str(port), SECRET), cwd=Path(__file__).parent.parent
        )
        stack.push_async_callback(process.wait)
        stack.callback(process.kill)
        await asyncio.sleep(1)
        yield
