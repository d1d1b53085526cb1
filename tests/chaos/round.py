"""One round: processes, a stream of comments, faults at random moments, quiet, and the checks."""

import asyncio
import os
import random
import shutil
import signal
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import orjson

from bot.demo.pair import agent_in_a_folder
from bot.postgres.embedded import embedded_postgres
from bot.sandbox.bwrap import Unusable, bwrap_for
from bot.simulated.github.faults import DropAfter, DropBefore, FailAfter, FailBefore, Fault, Latency, SecondaryRateLimit
from bot.store.migrate import migrate
from tests.chaos.bot_processes import Place, Places, end_process, gits_of, none_left_over
from tests.chaos.checks import (
    MOST_ATTEMPTS,
    ORPHANS,
    STUCK,
    Evidence,
    Violation,
    interrupted_by,
    stuck,
    taken_from_the_living,
    unanswered,
    violations,
)
from tests.chaos.hits import Hits
from tests.chaos.journal import Journal
from tests.chaos.outages import step_clock, until, with_a_locked_table, without_postgres, without_socket
from tests.chaos.program import NODE_TIMEOUT_SECONDS
from tests.chaos.stream import Stream
from tests.chaos.verbs import ends_by_verb, verbs
from tests.support.postgres import execute, with_database
from tests.support.processes import SECRET, Deployment, deployment
from tests.support.silent import Way, silent_way
from tests.support.world import NOTHING_LEFT

TEMPLATE = "chaos_template"
ENGINE_WITHOUT_DATABASE = "ConnectorException"
"""What the job engine logs as an error while its database is away."""
OFTEN = ("clone-initialised", "clone-fetched", "push-accepted", "branch-pushed", "turn-end-written")
SELDOM = (
    *("worktree-registered", "worktree-checked-out", "worktree-locked", "worktree-changed"),
    *("rescue-committed", "rescued", "reset-rescued", "reset-done"),
    *("trashed", "entry-dropped", "branch-deleted", "metadata-deleted", "restore-begun", "files-restored"),
    *("commits-restored", "next-branch-checked-out"),
)
"""The failpoints that the stream can reach."""
WEIGHTS = {
    "worker": 20,
    "web": 15,
    "agent": 15,
    "git": 15,
    "failpoint": 30,
    "postgres": 5,
    "suspended worker": 6,
    "suspended web": 3,
    "suspended node": 2,
    "cut off": 7,
    "postgres away": 2,
    "restart in an outage": 2,
    "socket gone": 3,
    "silent": 3,
    "locked table": 2,
    "clock": 4,
}
KILLS = ("worker", "web", "agent", "git", "failpoint", "postgres", "node", "restart in an outage")
PROGRESS = tuple(f'"event": "{name}"' for name in ("decided", "turn-started", "turn-ended", "outbox-sent"))
PAUSE_EVENTS, PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = (0, 7), (0.0, 0.4), 3.0
"""Between two faults so much progress is logged, however fast the machine is: faults that hit nothing prove nothing."""
FAILPOINT_SECONDS, AGENT_SECONDS, GIT_SECONDS = 15.0, 3.0, 3.0
CUT_SECONDS = (0.2, 2.0)
QUIET_SECONDS = 300.0
PROGRESS_SECONDS = 15.0
CUTS: tuple[tuple[Fault, str, str], ...] = (
    *((DropBefore(), "*", "*"), (DropBefore(), "*", "*"), (DropAfter(), "POST", "*/comments")),
    *((DropAfter(), "POST", "*/git-receive-pack"), (FailAfter(502), "POST", "*/comments")),
    *((FailAfter(502), "PATCH", "*"), (FailBefore(503), "*", "/repositories/*")),
    *((Latency(1.0), "*", "*"), (SecondaryRateLimit(1), "POST", "*/comments")),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a round consists of; everything random in it follows from the seed."""

    seed: int
    number: int
    kills: int
    nodes: int


@dataclass(slots=True)
class Outcome:
    """The figures of a finished round."""

    plan: Plan
    faults: dict[str, int] = field(default_factory=dict)
    deliveries: int = 0
    requests: int = 0
    attempts: int = 0
    """Turns because of failing checks."""
    states: dict[str, int] = field(default_factory=dict)
    sandbox: str = ""
    verbs: dict[str, dict[str, int]] = field(default_factory=dict)
    """How turns ended, by their verb; messages apart."""
    met: dict[str, int] = field(default_factory=dict)
    """What kills met."""
    interrupted: dict[str, int] = field(default_factory=dict)
    """How the processes ended that had begun with turns that ended `interrupted`."""
    failures: list[str] = field(default_factory=list)
    """Why turns failed: to be read, like the errors."""
    seconds: float = 0.0
    quiet_seconds: float = 0.0
    violations: list[Violation] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """Other errors that the processes logged, and ends that nobody caused: to be read, they break no promise."""
    directory: str = ""

    @property
    def kills(self) -> int:
        return sum(self.faults.get(kind, 0) for kind in KILLS)

    def count(self, fault: str) -> None:
        self.faults[fault] = self.faults.get(fault, 0) + 1


@dataclass(frozen=True, slots=True)
class Server:
    """The Postgres of a run; a supervisor starts it again when it was killed."""

    url: str
    directory: Path

    def kill(self) -> bool:
        """Kill the server with SIGKILL; False while it is starting."""
        try:
            postmaster = int((self.directory / "data" / "postmaster.pid").read_text().splitlines()[0])
            os.kill(postmaster, signal.SIGKILL)
        except (FileNotFoundError, IndexError, ValueError, ProcessLookupError):
            return False
        return True


@asynccontextmanager
async def postgres(directory: Path) -> AsyncIterator[Server]:
    """Yield a server with an empty database to copy. It keeps its commits when it is killed."""
    async with embedded_postgres(directory, None, {"fsync": "off"}) as url:
        await execute(url, f"create database {TEMPLATE}")
        await migrate(with_database(url, TEMPLATE))
        yield Server(url, directory)


async def play(directory: Path, server: Server, plan: Plan, say: Callable[[str], None]) -> Outcome:
    """Play a round in `directory`, which goes at the end unless a promise was broken."""
    outcome, began = Outcome(plan), time.monotonic()
    # Unique, so that a process of it is known by its name.
    directory.mkdir(parents=True)
    name = f"chaos_{plan.seed}_{plan.number}_{os.getpid()}"
    await _reachable(server)
    await execute(server.url, f"create database {name} template {TEMPLATE}")
    async with deployment(directory, with_database(server.url, name)) as here:
        here.tolerated = ""
        try:
            await Round(here, directory, server, plan, outcome, say).play()
        except Exception:  # noqa: BLE001 - a round that cannot be judged counts as broken
            outcome.violations.append(Violation(STUCK, traceback.format_exc()))
        finally:
            for process in here.processes:
                outcome.errors += [line for line in process.errors if ENGINE_WITHOUT_DATABASE not in line]
            outcome.seconds = time.monotonic() - began
            if outcome.violations:
                await _keep(here, directory, outcome)
    if outcome.violations:
        outcome.directory = str(directory)
    else:
        shutil.rmtree(directory, ignore_errors=True)
    await _reachable(server)
    await execute(server.url, f"drop database {name} with (force)")
    return outcome


class Round:
    """The tasks of one round."""

    def __init__(
        self,
        here: Deployment,
        directory: Path,
        server: Server,
        plan: Plan,
        outcome: Outcome,
        say: Callable[[str], None],
    ) -> None:
        self._here, self._server, self._plan, self._outcome, self._say = here, server, plan, outcome, say
        self._directory = directory
        self._rng = random.Random(f"{plan.seed}/{plan.number}")
        self._journal = Journal(directory / "agents")
        self._sandbox = self._rng.choice(("bwrap", "off")) if _has_sandbox(directory) else "off"
        self._takes_messages = self._rng.choice((True, False))
        self._way: Way | None = None
        self._hits = Hits(here.dsn)
        self._tasks: set[asyncio.Task[None]] = set()
        self._calm = False

    async def play(self) -> None:
        here, loop = self._here, asyncio.get_running_loop()
        loop.add_reader(self._journal.descriptor, self._journal.read)
        here.github.webhook_timeout_seconds = 1.5
        repositories = [here.repository]
        for name in ("acme/lamp", "octo/desk"):
            repositories.append(await here.github.create_repository(name))
            repositories[-1].allow(here.maria, "write")
        for one in repositories:  # or the bot may not read the log of webhooks, and what it missed stays missed
            one.allow(here.github.bot, "admin")
        stream = Stream(here, random.Random(self._rng.random()), repositories)
        try:
            async with self._on_the_way() as dsn:
                places = Places(here, self._places(dsn), random.Random(self._rng.random()))
                with places.started():
                    await self._play_with(places, stream)
        finally:
            await self._hits.close()
            loop.remove_reader(self._journal.descriptor)
            self._journal.close()

    @asynccontextmanager
    async def _on_the_way(self) -> AsyncIterator[str]:
        """Yield the database's address: its socket, or in half of the rounds a way that can fall silent."""
        if self._rng.choice((True, False)):
            yield self._here.dsn
            return
        async with silent_way(self._here.dsn) as way:
            self._way = way
            yield way.dsn

    async def _play_with(self, places: Places, stream: Stream) -> None:
        here, outcome, repositories = self._here, self._outcome, stream.repositories
        await places.ready()
        await stream.open_threads(3)
        # A repository of which the bot has not heard is not looked through for missed deliveries.
        for repository in repositories:
            await stream.ask(next(thread for thread in stream.threads if thread.repository is repository))
        await here.github.wait_for(lambda: not unanswered(stream), QUIET_SECONDS)

        await stream.open_pulls()
        enough = asyncio.Event()
        writing = asyncio.create_task(stream.run(enough, lambda: len(unanswered(stream))))
        checking = asyncio.create_task(stream.run_checks(enough))
        await self._disturb(places)
        enough.set()
        await asyncio.gather(writing, checking)
        self._calm = True
        here.github.faults.clear()
        here.github.faults.release()
        await asyncio.gather(*self._tasks)
        places.wake()
        ended = time.monotonic()
        await self._quiet(stream)
        outcome.quiet_seconds = time.monotonic() - ended
        outcome.violations += await stuck(here.dsn)
        outcome.violations += [Violation(STUCK, problem) for problem in await places.stop()]
        # Rows and disk are compared once nothing moves any more: a removal between the two looks like a loss.
        data_dirs = {place.settings["NODE_NAME"]: place.data_dir for place in places.workers}
        evidence = await Evidence.of(stream, self._journal.lines, data_dirs)
        outcome.violations += await violations(evidence) + await verbs(evidence)
        if self._plan.nodes == 1:
            # Elsewhere a node that is too slow looks dead, and its turns may be taken.
            outcome.violations += taken_from_the_living(places.lives)
        outcome.errors += places.ended
        left = await none_left_over(self._directory, 10)
        outcome.violations += [Violation(ORPHANS, process) for process in left]
        outcome.sandbox = self._sandbox
        outcome.deliveries, outcome.requests = len(here.github.deliveries), len(stream.requests)
        outcome.attempts = len(evidence.all_turns) - len(evidence.turns)
        outcome.verbs, outcome.met = ends_by_verb(evidence), dict(self._hits.met)
        outcome.states = dict(Counter(turn["state"] for turn in evidence.turns))
        outcome.interrupted = dict(interrupted_by(places.lives, evidence.turns))
        outcome.failures = [turn["reason"] for turn in evidence.turns if turn["state"] == "failed"]

    def _places(self, dsn: str) -> list[Place]:
        """Return the web process and the workers: one or two on the first node, one on each other."""
        agent = agent_in_a_folder(self._directory)
        shutil.copy(Path(__file__).with_name("agent.py"), self._directory / "agent" / "__main__.py")
        common = {
            "AGENT_COMMAND": f"{agent} {self._journal.directory}{' --steering' if self._takes_messages else ''}",
            "DATABASE_URL": dsn,
            "AGENT_SANDBOX": self._sandbox,
            "PORT": str(_free_port()),
            "MAX_CONCURRENT_TURNS": "3",
            "MAX_TURNS_PER_REPOSITORY": "3",
            "MAX_TURNS_PER_PERSON_PER_DAY": "100000",
            "MAX_COMMENTS_PER_HOUR": "100000",
            "AUTOFIX": "true",
            "MAX_FIX_ATTEMPTS": str(MOST_ATTEMPTS),
            "RECOVER_INTERVAL_SECONDS": "2",
            "SHUTDOWN_GRACE_SECONDS": "5",
            "GITHUB_WEBHOOK_SECRET": SECRET,
            "LOG_FORMAT": "json",
        }
        self._here.github.set_webhook(f"http://127.0.0.1:{common['PORT']}/webhooks/github", SECRET)
        names = ["node-1"] * self._rng.choice((1, 2)) + [f"node-{n}" for n in range(2, self._plan.nodes + 1)]

        def place(name: str, command: str, node: str) -> Place:
            settings = {**common, "NODE_NAME": node, "DATA_DIR": str(self._directory / "data" / node)}
            Path(settings["DATA_DIR"]).mkdir(parents=True, exist_ok=True)
            return Place(name, command, settings, self._directory / f"armed-{name}", self._directory / f"skew-{name}")

        workers = [place(f"worker-{n}", "worker", node) for n, node in enumerate(names, 1)]
        return [place("web", "web", "node-1"), *workers]

    async def _disturb(self, places: Places) -> None:
        """Cause faults until there were enough kills."""
        kinds = dict(WEIGHTS) | ({"node": 4} if self._plan.nodes > 1 else {})
        del kinds["socket gone" if self._way else "silent"]
        while self._outcome.kills < self._plan.kills:
            await self._progress()
            kind = self._rng.choices(tuple(kinds), tuple(kinds.values()))[0]
            at_work = await self._hits.look()
            if self._cause(kind, places):
                self._count(kind, at_work)

    def _count(self, kind: str, at_work: list[str] | None) -> None:
        self._outcome.count(kind)
        if kind in KILLS:
            self._hits.note(at_work)

    async def _progress(self) -> None:
        """Wait until the processes have done a little more."""
        starts = {process: len(process.lines) for process in self._here.processes}
        wanted, until = self._rng.randint(*PAUSE_EVENTS), time.monotonic() + LONGEST_PAUSE_SECONDS

        def events() -> int:
            new = (line for process in self._here.processes for line in process.lines[starts.get(process, 0) :])
            return sum(any(event in line for event in PROGRESS) for line in new)

        while events() < wanted and time.monotonic() < until:
            await asyncio.sleep(0.02)
        await asyncio.sleep(self._rng.uniform(*PAUSE_SECONDS))

    def _cause(self, kind: str, places: Places) -> bool:
        """Cause one fault; False if it cannot be now, or counts later."""
        place = self._rng.choice(places.workers)
        match kind:
            case "worker":
                return place.send(signal.SIGKILL)
            case "web":
                return places.all[0].send(signal.SIGKILL)
            case "agent":
                self._later(self._kill_next("agent", self._journal.at_work, AGENT_SECONDS))
            case "git":
                processes = [one.process for one in places.workers if one.process is not None]
                self._later(self._kill_next("git", lambda: gits_of(processes), GIT_SECONDS))
            case "failpoint":
                often = self._rng.sample(OFTEN, self._rng.choice((0, 1)))
                seldom = self._rng.sample(SELDOM, len(SELDOM) // 2)
                self._later(self._kill_at_failpoint(place, " ".join((*often, *seldom))))
            case "postgres":
                return self._server.kill()
            case "suspended worker":
                span = NODE_TIMEOUT_SECONDS * self._rng.uniform(0.2, 1.6)
                return self._suspend(place, span)
            case "suspended web":
                return self._suspend(places.all[0], self._rng.uniform(0.3, 2.5))
            case "cut off":
                self._later(self._cut_off())
                return True
            case "node":
                return self._lose_node(places)
            case "suspended node":
                span = NODE_TIMEOUT_SECONDS * self._rng.uniform(0.5, 2)
                node = [one for one in places.all if one.settings["NODE_NAME"] == place.settings["NODE_NAME"]]
                suspended = [self._suspend(one, span) for one in node]
                return any(suspended)
            case "postgres away":
                hold = self._longer_than_a_node_is_waited_for()
                hangs = self._rng.choice((True, False))
                self._later(without_postgres(self._server.directory, hold, hangs=hangs))
                return True
            case "restart in an outage":
                self._later(self._restart_in_an_outage(place if self._rng.random() < 0.7 else places.all[0]))
            case "silent" if self._way is not None:
                self._way.fall_silent()
                return True
            case "socket gone":
                hold = self._longer_than_a_node_is_waited_for()
                self._later(without_socket(self._server.directory, hold))
                return True
            case "locked table":
                hold = self._longer_than_a_node_is_waited_for()
                self._later(with_a_locked_table(self._here.dsn, self._rng, hold))
                return True
            case "clock":
                step_clock(self._rng.choice(places.all).skew, self._rng)
                return True
            case _:
                raise ValueError(kind)
        return False

    def _longer_than_a_node_is_waited_for(self) -> Callable[[], Awaitable[None]]:
        seconds = NODE_TIMEOUT_SECONDS * self._rng.uniform(0.5, 2.5)
        return partial(until, seconds, lambda: self._calm)

    async def _restart_in_an_outage(self, place: Place) -> None:
        """Let a process end and start again while Postgres is away."""
        number, hangs = self._rng.choice((signal.SIGKILL, signal.SIGTERM)), self._rng.choice((True, False))
        seconds, more = self._rng.uniform(0.1, 1), self._longer_than_a_node_is_waited_for()
        at_work = await self._hits.look()

        async def hold() -> None:
            await until(seconds, lambda: self._calm)
            if place.runs and place.send(number):
                self._count("restart in an outage", at_work)
            await more()

        await without_postgres(self._server.directory, hold, hangs=hangs)

    def _lose_node(self, places: Places) -> bool:
        """Kill all processes of one node, for longer than the others wait for it."""
        node = self._rng.choice(places.workers).settings["NODE_NAME"]
        down = NODE_TIMEOUT_SECONDS * self._rng.uniform(0.8, 2)
        killed = False
        for place in places.workers:
            if place.settings["NODE_NAME"] == node:
                place.restart_seconds = down
                killed |= place.send(signal.SIGKILL)
        return killed

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)

    async def _kill_at_failpoint(self, place: Place, names: str) -> None:
        """Let the process kill itself at the first of these failpoints, if it reaches one soon."""
        process = place.process
        if process is None or not place.runs or place.armed.exists():
            return
        place.armed.write_text(names)
        await until(FAILPOINT_SECONDS, lambda: self._calm or not process.is_running or not place.armed.exists())
        if place.armed.exists():
            place.armed.unlink(missing_ok=True)
        else:
            self._count("failpoint", await self._hits.look())

    async def _kill_next(self, kind: str, find: Callable[[], list[int]], seconds: float) -> None:
        """Kill the next process of this kind that is at work."""
        until = time.monotonic() + seconds
        while not (found := find()) and time.monotonic() < until and not self._calm:
            await asyncio.sleep(0.01)
        at_work = await self._hits.look() if found else None
        if found and end_process(self._rng.choice(found)):
            self._count(kind, at_work)

    def _suspend(self, place: Place, seconds: float) -> bool:
        if not place.runs or not place.send(signal.SIGSTOP):
            return False
        place.suspended = True
        self._later(self._resume(place, seconds))
        return True

    async def _resume(self, place: Place, seconds: float) -> None:
        process = place.process
        await until(seconds, lambda: self._calm)
        if place.process is process:
            place.send(signal.SIGCONT)
            place.suspended = False

    async def _cut_off(self) -> None:
        fault, method, path = self._rng.choice(CUTS)
        self._here.github.faults.add(fault, method=method, path=path, times=None)
        await until(self._rng.uniform(*CUT_SECONDS), lambda: self._calm)
        self._here.github.faults.clear()

    async def _quiet(self, stream: Stream) -> None:
        """Wait until nothing is left to do. What is left after QUIET_SECONDS shows in the checks."""
        began = said = time.monotonic()
        calm = 0
        while calm < 3:
            now = time.monotonic()
            if now - began > QUIET_SECONDS:
                self._outcome.violations.append(Violation(STUCK, f"not quiet within {QUIET_SECONDS} s"))
                return
            if now - said > PROGRESS_SECONDS:
                said = now
                waiting = ", ".join(asked.tag for asked in unanswered(stream))
                self._say(
                    f"  quiet for {now - began:.0f} s: waiting for {waiting or 'no answer'}; {await self._left()}"
                )
            calm = calm + 1 if await self._nothing_left(stream) else 0
            await asyncio.sleep(0.15)

    async def _nothing_left(self, stream: Stream) -> bool:
        with suppress(OSError, asyncpg.PostgresError, TimeoutError):
            connection = await asyncpg.connect(self._here.dsn, timeout=5)
            try:
                # A minute after it was lost a worktree is let go: here after seconds.
                await connection.execute(
                    "update worktrees set updated_at = now() - interval '2 minutes' "
                    "where state = 'lost' and updated_at < now() - interval '5 seconds'"
                )
                lost = await connection.fetchval("select exists (select from worktrees where state = 'lost')")
                if lost or not self._here.maria.acts.webhooks.settled or unanswered(stream):
                    return False
                # Nobody waits for the answer to a close: it counts as told once all was compared with GitHub after it.
                told = max(
                    one.delivered_at + timedelta(seconds=one.duration_seconds) for one in self._here.github.deliveries
                )
                compared = await connection.fetchval("select count(*) from recoveries where compared_at > $1", told)
                return compared == len(stream.repositories) and bool(await connection.fetchval(NOTHING_LEFT))
            finally:
                await connection.close()
        return False

    async def _left(self) -> str:
        """Return what waits in the rows."""
        with suppress(OSError, asyncpg.PostgresError, TimeoutError):
            return ", ".join(one.what[:100] for one in (await stuck(self._here.dsn))[:6])
        return "no database"


async def _reachable(server: Server) -> None:
    """Wait until Postgres answers."""
    while True:
        with suppress(OSError, asyncpg.PostgresError, TimeoutError):
            connection = await asyncpg.connect(server.url, timeout=5)
            await connection.close()
            return
        await asyncio.sleep(0.1)


async def _keep(here: Deployment, directory: Path, outcome: Outcome) -> None:
    """Write down what shows why a promise was broken."""
    (directory / "violations").write_text("\n".join(f"{one.kind}: {one.what}" for one in outcome.violations))
    for n, process in enumerate(here.processes):
        (directory / f"log-{n:03}-{process.command}").write_text(process.stderr)
    tables = (
        *("deliveries", "turns", "requests", "operations", "worktrees", "conversations", "outbox", "sessions"),
        *("rescues", "nodes"),
    )
    with suppress(OSError, asyncpg.PostgresError, TimeoutError):
        connection = await asyncpg.connect(here.dsn, timeout=5)
        for table in (*tables, "procrastinate_jobs"):
            rows = await connection.fetch(f"select to_jsonb(t)::text from {table} t")  # noqa: S608 -- names above
            (directory / f"rows-{table}").write_text("\n".join(row[0] for row in rows))
        await connection.close()
    said = [
        f"{comment.id} {comment.created_at:%H:%M:%S.%f} {comment.updated_at:%H:%M:%S.%f} {comment!r}"
        for repository in here.github.world.repositories.values()
        for thread in repository.threads.values()
        for comment in thread.comments
    ]
    (directory / "comments").write_text("\n\n".join(said))
    sent = [
        orjson.dumps(
            (d.delivered_at.isoformat(), d.guid, d.event, d.action, d.redelivery, d.status_code, d.status)
        ).decode()
        for d in here.github.deliveries
    ]
    (directory / "webhooks").write_text("\n".join(sent))
    asked = [f"{r.at:%H:%M:%S.%f} {r.method} {r.path} {r.query} {r.status}" for r in here.github.requests]
    (directory / "requests").write_text("\n".join(asked))
    sys.stderr.flush()


def _has_sandbox(data_dir: Path) -> bool:
    return not isinstance(bwrap_for(data_dir, os.environ["PATH"]).probe(), Unusable)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
