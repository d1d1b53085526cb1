"""What a flood of one person's comments costs others: the time until their 👀 and their turn, and the bot's memory."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.servers import resident_mb
from bot.postgres.embedded import embedded_postgres
from bot.simulated.github.model import Issue
from bot.simulated.github.person import Person
from bot.simulated.github.webhooks import Delivery
from tests.support.patience import eventually
from tests.support.processes import BotProcess, Deployment, deployment

THREADS, AT_ONCE = 200, 8
PATIENCE_SECONDS = 900.0
LIMIT_SECONDS = 30.0
"""Limit for another person's turn to start, while two requests of the flood run."""
LIMIT_MB = 250.0
STARTED = "select exists (select from turns where source_id = $1 and started_at is not null)"
RECEIVED = "select count(*) from deliveries where event = 'issue_comment'"
UNDECIDED = "select count(*) from deliveries where state = 'received'"


@dataclass(frozen=True, slots=True)
class Figure:
    """Seconds until another person's 👀 and turn, elsewhere and in the flooded repository; peaks of memory."""

    comments: int
    flood_seconds: float
    undecided: int
    seconds: dict[str, tuple[float, float]]
    peaks_mb: dict[str, float]

    @property
    def holds(self) -> bool:
        """Return whether the limits are kept."""
        return all(turn <= LIMIT_SECONDS for _, turn in self.seconds.values()) and all(
            peak <= LIMIT_MB for peak in self.peaks_mb.values()
        )


async def measure(comments: int, seconds: float) -> Figure:
    """Write `comments` within `seconds` as one person over many threads; in the middle, others ask once each."""
    with tempfile.TemporaryDirectory(prefix="threadtree-bench-", ignore_cleanup_errors=True) as directory:
        async with (
            embedded_postgres(Path(directory) / "postgres", None) as database_url,
            deployment(Path(directory), database_url, interpreters=True) as here,
        ):
            here.tolerated = ""  # turns are cut off at the end
            here.environment["MAX_TURNS_PER_PERSON_PER_DAY"] = str(comments)
            await here.run("migrate")
            threads = [await here.maria.open_issue(here.repository, f"Issue {number}") for number in range(THREADS)]
            ada = here.github.person("ada")
            elsewhere = await here.github.create_repository("acme/quiet")
            for repository in (elsewhere, here.repository):
                repository.allow(ada, "write")
            processes = {"web": await here.start_listening("web"), "worker": await here.start("worker")}
            async with _peaks(processes) as peaks:
                begun = time.perf_counter()
                flood = asyncio.create_task(_flood(here, threads, comments, seconds))
                await asyncio.sleep(seconds / 2)
                asked = {
                    "another repository": await ada.open_issue(elsewhere, "Quiet"),
                    "the flooded repository": await ada.open_issue(here.repository, "Quiet, too"),
                }
                waits = await asyncio.gather(*(_served(here, ada, issue) for issue in asked.values()))
                await flood
                took = time.perf_counter() - begun
                await here.until(f"select ({RECEIVED}) >= {comments}", seconds=PATIENCE_SECONDS)
                undecided = await here.until(f"select greatest(1, ({UNDECIDED}))")
            return Figure(comments, took, int(str(undecided)), dict(zip(asked, waits, strict=True)), peaks)


async def _flood(here: Deployment, threads: list[Issue], comments: int, seconds: float) -> None:
    begun, numbers = time.perf_counter(), iter(range(comments))

    async def write() -> None:
        for number in numbers:
            await asyncio.sleep(max(0.0, begun + seconds * number / comments - time.perf_counter()))
            await here.ask(f"do part {number}", threads[number % THREADS])

    await asyncio.gather(*(write() for _ in range(AT_ONCE)))


async def _served(here: Deployment, person: Person, issue: Issue) -> tuple[float, float]:
    """Ask as the person; return the seconds from the webhook until 👀 and until the turn starts.

    Not from the comment: the simulated GitHub's own queue of webhooks is long behind a flood.
    """
    comment = await person.comment(issue, f"@{here.github.bot.login} do it")

    async def sent() -> Delivery | None:
        comments = (one for one in reversed(here.github.deliveries) if one.event == "issue_comment")
        return next((one for one in comments if one.payload["comment"]["id"] == comment.id), None)

    webhook = await eventually(sent, PATIENCE_SECONDS)
    assert webhook is not None
    begun = webhook.delivered_at.timestamp()

    async def is_seen() -> bool:
        return any(reaction.user.id == here.github.bot.id for reaction in comment.reactions)

    await eventually(is_seen, PATIENCE_SECONDS)
    seen = time.time() - begun
    await here.until(STARTED, comment.id, seconds=PATIENCE_SECONDS)
    return seen, time.time() - begun


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
    """Print the figures; return whether they keep the limits."""
    print(f"{figure.comments:,} comments of one person on {THREADS} threads in {figure.flood_seconds:.0f} s")
    print(f"  all received; still to be decided then {figure.undecided:,}")
    print(f"  another person waits in               for 👀     for the turn (at most {LIMIT_SECONDS:g} s)")
    for where, (seen, turn) in figure.seconds.items():
        print(f"    {where:30} {seen:8.1f} s {turn:8.1f} s")
    for name, peak in figure.peaks_mb.items():
        print(f"  memory of {name:26} {peak:8.0f} MB (at most {LIMIT_MB:g} MB)")
    return figure.holds
