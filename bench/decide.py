"""How long a worker takes to decide what waits for it: 500 mentions on 100 threads, with two agents at work."""

import os
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import asyncpg

from bot.postgres.embedded import embedded_postgres
from tests.support.processes import Deployment, deployment

THREADS, MENTIONS = 100, 500
LIMIT_SECONDS = 6.0
PATIENCE_SECONDS = 120.0
STORED = "select count(*) = $1 from deliveries where state = 'received' and lock_key is not null"
ALL_DECIDED = "select not exists (select from deliveries where state = 'received')"
DECIDED = "select min(finished_at), max(finished_at), count(*) from deliveries where state = 'done'"
IDLE_AGENT = "sleep 1000"


@dataclass(frozen=True, slots=True)
class Figure:
    """The seconds from the first decision to the last, the worker's CPU for each, and how often GitHub was asked."""

    seconds: float
    cpu_ms: float
    permissions: int
    threads: int

    @property
    def holds(self) -> bool:
        """Return whether the limit is kept."""
        return self.seconds <= LIMIT_SECONDS


async def measure() -> Figure:
    """Store the mentions while no worker runs, then start one."""
    with tempfile.TemporaryDirectory(prefix="threadtree-bench-", ignore_cleanup_errors=True) as directory:
        async with (
            embedded_postgres(Path(directory) / "postgres", None) as database_url,
            deployment(Path(directory), database_url, interpreters=True) as here,
        ):
            here.tolerated = ""  # the agents are killed at the end, which the bot logs
            here.environment |= {"AGENT_COMMAND": IDLE_AGENT, "MAX_TURNS_PER_PERSON_PER_DAY": str(MENTIONS)}
            await here.run("migrate")
            await _store(here)
            return await _decide(here)


async def _store(here: Deployment) -> None:
    issues = [await here.maria.open_issue(here.repository, f"Issue {number}") for number in range(THREADS)]
    web = await here.start_listening("web")
    for number in range(MENTIONS):
        await here.ask(f"do part {number}", issues[number % THREADS])
    await here.until(STORED, MENTIONS, seconds=PATIENCE_SECONDS)
    await web.terminate()


async def _decide(here: Deployment) -> Figure:
    asked = len(here.github.traffic.requests)
    worker = await here.start("worker")
    await here.until(ALL_DECIDED, seconds=PATIENCE_SECONDS)
    cpu_seconds = _cpu_seconds(worker.pid)
    paths = [request.path for request in here.github.traffic.requests[asked:]]
    connection = await asyncpg.connect(here.dsn)
    first, last, count = await connection.fetchrow(DECIDED)
    await connection.close()
    if count != MENTIONS:
        raise RuntimeError(f"{count} of {MENTIONS} were decided")
    return Figure(
        _seconds(first, last),
        1000 * cpu_seconds / MENTIONS,
        sum(path.endswith("/permission") for path in paths),
        sum("/issues/" in path and path.rsplit("/", 1)[1].isdigit() for path in paths),
    )


def _seconds(first: datetime, last: datetime) -> float:
    return (last - first).total_seconds()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report(figure: Figure) -> bool:
    """Print the figure; return whether it keeps the limit."""
    print(f"{MENTIONS} mentions on {THREADS} threads, decided by one worker")
    print(f"  first to last        {figure.seconds:8.2f} s   (at most {LIMIT_SECONDS:g} s)")
    print(f"  the worker's CPU     {figure.cpu_ms:8.2f} ms  a mention, its start-up included")
    print(f"  GitHub was asked     {figure.permissions:8}     times for a permission, {figure.threads} for a thread")
    return figure.holds
