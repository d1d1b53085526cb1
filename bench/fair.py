"""What a flood of one person's comments costs others: their waits for 👀 and for a turn, and the bot's memory.

GitHub delivers one in ten of the flood's webhooks again. Nothing may be lost or done twice.
"""

import asyncio
import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import asyncpg
import orjson

from bench.servers import resident_mb
from bot.demo.pair import SCRIPTED_AGENT
from bot.postgres.embedded import embedded_postgres
from bot.simulated.github.model import Comment, Issue, Repository
from bot.simulated.github.person import Person
from bot.simulated.github.webhooks import Delivery
from tests.support.patience import eventually
from tests.support.processes import BotProcess, Deployment, deployment

THREADS, WRITERS, WEBHOOKS_AT_ONCE = 200, 8, 16
REPEATED = 10
"""One in so many deliveries comes again."""
AGENT_SECONDS = 2
"""What each agent takes; a real one takes minutes."""
ASK_SECONDS = 20.0
"""The pause of another person between two requests."""
PATIENCE_SECONDS = 1500.0
LIMIT_SECONDS = 30.0
"""Limit for another person's turn to start, while two requests of the flood run."""
LIMIT_MB = 250.0
UNDECIDED = "select count(*) from deliveries where state = 'received'"
STATES = "select state, count(*) from deliveries where event = 'issue_comment' group by state"
TURNS = "select count(*), count(distinct source_id) from requests where source_kind = 'comment'"
TIMES = """
select d.received_at, t.started_at from turns t join requests r on r.turn_id = t.id
join deliveries d on d.guid = $2 where r.source_kind = 'comment' and r.source_id = $1
"""


@dataclass(frozen=True, slots=True)
class Wait:
    """Seconds from the arrival of another person's request until its 👀 and until its turn started."""

    where: str
    seen: float
    started: float


@dataclass(frozen=True, slots=True)
class Figure:
    """What arrived, what became of it, what others waited, and the peaks of memory."""

    comments: int
    flood_seconds: float
    deliveries: int
    refused: int
    repeats: Counter[str]
    undecided: int
    decided_seconds: float
    states: dict[str, int]
    requests: int
    turns: tuple[int, int]
    waits: list[Wait]
    peaks_mb: dict[str, float]

    @property
    def faults(self) -> list[str]:
        """Return what does not hold."""
        holds = {
            f"{self.refused} deliveries were not accepted": self.refused == 0,
            f"repeated deliveries were answered {dict(self.repeats)}": set(self.repeats) == {"duplicate"},
            f"deliveries ended as {self.states}": set(self.states) <= {"done", "ignored"},
            f"{self.requests:,} requests became {self.turns[0]:,} turns": self.turns == (self.requests, self.requests),
            "somebody waited too long": all(max(one.seen, one.started) <= LIMIT_SECONDS for one in self.waits),
            "a process took too much memory": all(peak <= LIMIT_MB for peak in self.peaks_mb.values()),
        }
        return [fault for fault, is_kept in holds.items() if not is_kept]


async def measure(comments: int, seconds: float) -> Figure:
    """Write `comments` within `seconds` as one person over many threads; until all are decided, others ask too."""
    with tempfile.TemporaryDirectory(prefix="threadtree-bench-", ignore_cleanup_errors=True) as directory:
        async with (
            embedded_postgres(Path(directory) / "postgres", None) as database_url,
            deployment(Path(directory), database_url, interpreters=True, webhooks_at_once=WEBHOOKS_AT_ONCE) as here,
        ):
            here.tolerated = ""  # turns are cut off at the end
            slow = f"/bin/sh -c 'sleep {AGENT_SECONDS}; exec {SCRIPTED_AGENT}'"
            lifted = dict.fromkeys(("MAX_TURNS_PER_PERSON_PER_DAY", "MAX_COMMENTS_PER_HOUR"), str(comments))
            here.environment |= {"AGENT_COMMAND": slow, **lifted}
            await here.run("migrate")
            threads = [await here.maria.open_issue(here.repository, f"Issue {number}") for number in range(THREADS)]
            places = [await here.github.create_repository(f"acme/{name}") for name in ("quiet", "calm")]
            others = [here.github.person(login) for login in ("ada", "bob")]
            asking = [*zip(others, places, strict=True), (others[0], here.repository)]
            for person, repository in asking:
                repository.allow(person, "write")
            processes = {"web": await here.start_listening("web"), "worker": await here.start("worker")}
            await processes["web"].ready()
            async with _peaks(processes) as peaks:
                return await _measure(here, threads, asking, comments, seconds, peaks)


async def _measure(
    here: Deployment,
    threads: list[Issue],
    asking: Sequence[tuple[Person, Repository]],
    comments: int,
    seconds: float,
    peaks: dict[str, float],
) -> Figure:
    begun = time.perf_counter()
    flooded, decided = asyncio.Event(), asyncio.Event()
    repeating = asyncio.create_task(_repeat(here, flooded))
    others = [asyncio.create_task(_ask(here, *one, decided)) for one in asking]
    await _flood(here, threads, comments, seconds)
    await here.github.settled(PATIENCE_SECONDS)
    flooded.set()
    flood_seconds = time.perf_counter() - begun
    undecided = int(str(await here.value(UNDECIDED)))
    await repeating
    await here.until(f"select ({UNDECIDED}) = 0", seconds=PATIENCE_SECONDS)
    decided_seconds = time.perf_counter() - begun
    decided.set()
    waits = [wait for found in await asyncio.gather(*others) for wait in found]
    connection = await asyncpg.connect(here.dsn)
    try:
        states = {row["state"]: row["count"] for row in await connection.fetch(STATES)}
        turns = tuple(await connection.fetchrow(TURNS))
    finally:
        await connection.close()
    sent = here.github.deliveries
    repeats = Counter(_status(one) for one in sent if one.redelivery)
    refused = sum(not one.succeeded for one in sent)
    requests = comments + len(waits)
    return Figure(
        comments, flood_seconds, len(sent), refused, repeats, undecided, decided_seconds, states, requests, turns,
        waits, dict(peaks),
    )  # fmt: skip


async def _flood(here: Deployment, threads: list[Issue], comments: int, seconds: float) -> None:
    begun, numbers = time.perf_counter(), iter(range(comments))

    async def write() -> None:
        for number in numbers:
            await asyncio.sleep(max(0.0, begun + seconds * number / comments - time.perf_counter()))
            await here.ask(f"do part {number}", threads[number % THREADS])

    await asyncio.gather(*(write() for _ in range(WRITERS)))


async def _repeat(here: Deployment, flooded: asyncio.Event) -> None:
    """Deliver one in REPEATED again, soon after its first time, until all first ones of the flood were repeated."""
    seen = first_ones = 0
    while not flooded.is_set() or seen < len(here.github.deliveries):
        for delivery in here.github.deliveries[seen:]:
            seen += 1
            if delivery.event == "issue_comment" and not delivery.redelivery:
                first_ones += 1
                if first_ones % REPEATED == 0:
                    here.github.redeliver_later(delivery.guid)
        await asyncio.sleep(0.1)
    await here.github.settled(PATIENCE_SECONDS)


def _status(delivery: Delivery) -> str:
    if not delivery.succeeded:
        return str(delivery.status_code)
    return str(orjson.loads(delivery.response_body)["status"])


async def _ask(here: Deployment, person: Person, repository: Repository, decided: asyncio.Event) -> list[Wait]:
    """Ask now and then, each time on a new issue, until the flood is decided; return the waits."""
    asked: list[asyncio.Task[Wait]] = []
    while not decided.is_set():
        issue = await person.open_issue(repository, "Quiet")
        sent = len(here.github.deliveries)
        comment = await person.comment(issue, f"@{here.github.bot.login} do it")
        asked.append(asyncio.create_task(_served(here, repository, comment, sent)))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(decided.wait(), ASK_SECONDS)
    return await asyncio.gather(*asked)


async def _served(here: Deployment, repository: Repository, comment: Comment, sent_before: int) -> Wait:
    """Return what the person waits from the arrival of the webhook, which is not the bot's to hasten."""
    looked, name = sent_before, f'"id":{comment.id},'.encode()

    async def sent() -> Delivery | None:
        nonlocal looked
        log = here.github.deliveries
        while looked < len(log):
            looked += 1
            if log[looked - 1].event == "issue_comment" and name in log[looked - 1].request_body:
                return log[looked - 1]
        return None

    webhook = await eventually(sent, PATIENCE_SECONDS)
    assert webhook is not None

    async def is_seen() -> bool:
        return any(reaction.user.id == here.github.bot.id for reaction in comment.reactions)

    await eventually(is_seen, PATIENCE_SECONDS)
    reaction = next(one for one in comment.reactions if one.user.id == here.github.bot.id)
    connection = await asyncpg.connect(here.dsn)
    try:

        async def started() -> asyncpg.Record | None:
            row = await connection.fetchrow(TIMES, comment.id, webhook.guid)
            return row if row is not None and row["started_at"] is not None else None

        row = await eventually(started, PATIENCE_SECONDS)
        assert row is not None
    finally:
        await connection.close()
    arrived = row["received_at"]
    return Wait(
        repository.full_name,
        (reaction.created_at - arrived).total_seconds(),
        (row["started_at"] - arrived).total_seconds(),
    )


@asynccontextmanager
async def _peaks(processes: dict[str, BotProcess]) -> AsyncIterator[dict[str, float]]:
    """Yield the highest resident memory of each process so far."""
    peaks = dict.fromkeys(processes, 0.0)

    async def look() -> None:
        while True:
            for name, process in processes.items():
                peaks[name] = max(peaks[name], resident_mb(process.pid))
            await asyncio.sleep(0.5)

    looking = asyncio.create_task(look())
    try:
        yield peaks
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking


def report(figure: Figure) -> bool:
    """Print the figures; return whether all holds."""
    print(f"{figure.comments:,} comments of one person on {THREADS} threads in {figure.flood_seconds:.0f} s")
    print(f"  deliveries {figure.deliveries:,}, of which repeats {figure.repeats.total():,}: {dict(figure.repeats)}")
    print(f"  then still to be decided {figure.undecided:,}; all decided after {figure.decided_seconds:.0f} s")
    print(f"  {figure.requests:,} requests, {figure.turns[0]:,} turns; deliveries ended as {figure.states}")
    print(f"  others wait in         asked   for 👀 p50 / max   for the turn p50 / max (at most {LIMIT_SECONDS:g} s)")
    for where in sorted({one.where for one in figure.waits}):
        here = [one for one in figure.waits if one.where == where]
        seen, started = [one.seen for one in here], [one.started for one in here]
        print(
            f"    {where:20} {len(here):5} {median(seen):9.1f} / {max(seen):5.1f} s"
            f" {median(started):12.1f} / {max(started):5.1f} s"
        )
    for name, peak in figure.peaks_mb.items():
        print(f"  memory of {name:12} {peak:8.0f} MB (at most {LIMIT_MB:g} MB)")
    for fault in figure.faults:
        print(f"  BROKEN: {fault}")
    return not figure.faults
