"""How fast deliveries are acknowledged: Threadtree commits them, Probot keeps them in memory, under the same load."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from bench.deliveries import Deliveries
from bench.load import Answers, Load
from bench.servers import free_port, node, running
from bot.postgres.embedded import embedded_postgres
from bot.store.migrate import migrate
from tests.recorded.install import install, target_of

SECRET = "the bench's own secret"  # noqa: S105 -- of servers that live as long as the measurement
BOT_NAME = "threadtree"
WARM_UP = 200
HERE = Path(__file__).parent
PACKAGES = (HERE.parent / "tests/recorded", HERE / "probot")


@dataclass(frozen=True, slots=True)
class Offer:
    """The load: deliveries a second, and for how many seconds."""

    per_second: int
    seconds: int

    @property
    def count(self) -> int:
        """Return the number of deliveries."""
        return self.per_second * self.seconds


@dataclass(frozen=True, slots=True)
class Figure:
    """One server's answers; `committed` is None if the server stores nothing."""

    name: str
    answers: Answers
    committed: int | None


async def measure(web: Sequence[str], offer: Offer) -> list[Figure]:
    """Measure both servers in turn. `web` is the command of the web process; its settings are in the environment."""
    for folder in PACKAGES:
        if install(folder):
            raise RuntimeError(f"npm could not install what {folder} locks")
    with tempfile.TemporaryDirectory(prefix="threadtree-bench-", ignore_cleanup_errors=True) as directory:
        return [await _threadtree(web, offer, Path(directory)), await _probot(offer, Path(directory))]


def report(figures: list[Figure], offer: Offer) -> bool:
    """Print the figures; return whether all deliveries were answered and committed."""
    print(f"{'':20} {'answered':>9} {'errors':>7} {'committed':>10} {'p50 ms':>8} {'p99 ms':>8}")
    for figure in figures:
        answers, committed = figure.answers, "-" if figure.committed is None else figure.committed
        print(
            f"{figure.name:20} {len(answers.latencies_ms):9} {answers.errors:7} {committed:>10}"
            f" {answers.percentile_ms(50):8.2f} {answers.percentile_ms(99):8.2f}"
        )
        if answers.errors:
            print(f"{'':20} {dict(answers.statuses)}")
    ours, theirs = (figure.answers for figure in figures)
    ratios = [ours.percentile_ms(percent) / theirs.percentile_ms(percent) for percent in (50, 99)]
    print(f"{'ratio of the two':48} {ratios[0]:8.2f} {ratios[1]:8.2f}")
    failed = any(figure.answers.errors for figure in figures)
    return not failed and all(figure.committed in (None, offer.count) for figure in figures)


async def _threadtree(web: Sequence[str], offer: Offer, directory: Path) -> Figure:
    async with embedded_postgres(directory / "postgres", None) as database_url:
        await migrate(database_url)
        port = free_port()
        environment = {
            "DATABASE_URL": database_url,
            "DATA_DIR": str(directory / "data"),
            "HOST": "127.0.0.1",
            "PORT": str(port),
            "GITHUB_WEBHOOK_SECRET": SECRET,
            "GITHUB_TOKEN": "unused",
            "BOT_NAME": BOT_NAME,
        }
        async with running(web, port, environment, directory / "web.log"):
            answers = await _offer(port, "/webhooks/github", offer)
        connection = await asyncpg.connect(database_url)
        try:
            fsync = await connection.fetchval("show fsync")
            synchronous = await connection.fetchval("show synchronous_commit")
            if (fsync, synchronous) != ("on", "on"):
                raise RuntimeError(f"Postgres does not commit to disk: fsync={fsync} synchronous_commit={synchronous}")
            committed = await connection.fetchval(
                "select count(*) from deliveries join procrastinate_jobs on guid = args->>'guid'"
            )
        finally:
            await connection.close()
    return Figure("threadtree web", answers, committed - WARM_UP)


async def _probot(offer: Offer, directory: Path) -> Figure:
    packages = target_of(HERE / "probot") / "node_modules"
    port = free_port()
    command = [node(), str(HERE / "probot/server.mjs"), str(packages / "probot/lib/index.js"), str(port)]
    environment = {"WEBHOOK_SECRET": SECRET, "NODE_ENV": "production"}
    async with running(command, port, environment, directory / "probot.log"):
        answers = await _offer(port, "/api/github/webhooks", offer)
    return Figure("probot, from memory", answers, None)


async def _offer(port: int, path: str, offer: Offer) -> Answers:
    load = Load(port)
    deliveries = Deliveries(path, SECRET.encode(), BOT_NAME)
    try:
        warm_up = await load.offer(deliveries.request, WARM_UP, offer.per_second)
        if warm_up.errors:
            raise RuntimeError(f"The server does not take deliveries: {dict(warm_up.statuses)}")
        return await load.offer(deliveries.request, offer.count, offer.per_second)
    finally:
        load.close()
