"""A real `threadtree serve`, whose threads are asked and timed as a person on them would do it.

The simulated GitHub is in this process. Each request to it is logged, and the bytes of its git are counted.
"""

import asyncio
import re
import shutil
import tempfile
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from starlette.types import Message, Receive, Scope, Send

from bench import timed_agent
from bot.demo.pair import agent_in_a_folder
from bot.postgres.embedded import embedded_postgres
from bot.simulated.github.model import Issue, Repository
from bot.simulated.github.server import SimulatedGitHub
from bot.simulated.github.traffic import LoggedRequest, Traffic
from bot.tree.clone.shared_blocks import MARK
from tests.support.patience import eventually
from tests.support.processes import Deployment, children_of, deployment

PATIENCE_SECONDS = 600.0
REST_SECONDS = 2.0
"""The pause after which the bot is idle: long enough that its budget of writes is full again."""
_MOMENTS = re.compile(r"Moments: ([\d.]+) ([\d.]+) ([\d.]+)")
_FOR_PEOPLE = ("/comments", "/reactions")
_LIFTED = {"MAX_TURNS_PER_PERSON_PER_DAY": "100000", "MAX_COMMENTS_PER_HOUR": "100000"}


@dataclass(slots=True)
class Wire:
    """How many bytes went over the network to and from GitHub's git, by the time, and how many requests are open."""

    times: list[float] = field(default_factory=list)
    totals: list[int] = field(default_factory=list)
    open: int = 0

    def between(self, begin: float, end: float) -> int:
        """Return the bytes of that time."""
        return self._until(end) - self._until(begin)

    def _until(self, moment: float) -> int:
        number = bisect_right(self.times, moment)
        return self.totals[number - 1] if number else 0

    def _count(self, message: Message) -> None:
        self.times.append(time.monotonic())
        self.totals.append(len(message.get("body", b"")) + (self.totals[-1] if self.totals else 0))

    async def handle(self, traffic: Traffic, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request of the simulated GitHub and count it."""
        if scope["type"] != "http" or ".git/" not in scope["path"]:
            return await _handle(traffic, scope, receive, send)

        async def received() -> Message:
            self._count(message := await receive())
            return message

        async def sent(message: Message) -> None:
            await send(message)
            self._count(message)

        self.open += 1
        try:
            await _handle(traffic, scope, received, sent)
        finally:
            self.open -= 1


_handle = Traffic.__call__


@dataclass(frozen=True, slots=True)
class Asked:
    """What became of one request, in seconds after its comment.

    `words` is the first comment on the thread; `begun` the start of the agent's process, `prompted` when it was asked,
    `ended` when it was done. `received` are the bytes of git before `begun`; `requests` those until the answer.
    """

    seen: float
    words: float
    begun: float
    prompted: float
    ended: float
    answered: float
    received: int
    requests: Sequence[LoggedRequest]
    at: float

    @property
    def in_a_row(self) -> int:
        """Return how many requests before the agent waited for each other: each began when the one before had ended.

        What goes on beside its start does not count: words for people, a look at the branch, the fetch of all others.
        """
        fetches = [one for one in self.requests if one.query == "service=git-upload-pack"]
        beside = [one for one in self.requests if one.path.endswith(_FOR_PEOPLE) and one.method == "POST"]
        beside += [one for one in self.requests if one.method == "PATCH" or "/branches/" in one.path]
        return self._in_a_row(self.begun, [*beside, *fetches[1:]])

    @property
    def seen_in_a_row(self) -> int:
        """Return the same for 👀, its own request included."""
        own = next(one for one in self.requests if one.path.endswith("/reactions"))
        return self._in_a_row(own.began - self.at) + 1

    def _in_a_row(self, until: float, beside: Sequence[LoggedRequest] = ()) -> int:
        count, free = 0, self.at
        for one in sorted(self.requests, key=lambda request: request.ended):
            if one not in beside and one.began >= free and one.ended <= self.at + until:
                count, free = count + 1, one.ended
        return count

    def listed(self) -> list[str]:
        """Return the requests in order, and among them where the agent begins."""
        lines = [
            (one.began - self.at, f"{one.method} {one.path}{'?' + one.query if one.query else ''} {one.status}")
            for one in self.requests
        ]
        return [f"{moment:6.3f} s  {what}" for moment, what in sorted([*lines, (self.begun, "the agent begins")])]


@dataclass(frozen=True, slots=True)
class Stage:
    """The deployment, and the requests that people make in it."""

    here: Deployment
    wire: Wire
    agent: Path

    @property
    def github(self) -> SimulatedGitHub:
        return self.here.github

    async def repository(self, name: str) -> Repository:
        """Create a repository of one file, where maria may write."""
        made = await self.github.create_repository(f"acme/{name}")
        made.allow(self.here.maria, "write")
        return made

    async def issue(self, repository: Repository) -> Issue:
        """Open an issue that asks for nothing."""
        return await self.here.maria.open_issue(repository, "Something to do")

    async def ask(self, thread: Issue, words: str = "append notes.txt: one") -> Asked:
        """Ask the bot on the thread, and wait for its answer."""
        known, moments = len(thread.comments), dict[str, float]()
        at = time.monotonic()
        comment = await self.here.maria.comment(thread, f"@{self.github.bot.login} {words}")

        def answer() -> re.Match[str] | None:
            now = time.monotonic() - at
            bot = self.github.bot.id
            if any(one.user.id == bot for one in comment.reactions):
                moments.setdefault("seen", now)
            bodies = [one.body for one in thread.comments[known:] if one.author.id == bot]
            if bodies:
                moments.setdefault("words", now)
            moments["answered"] = now
            return next(filter(None, map(_MOMENTS.search, bodies)), None)

        found = await self.github.wait_for(answer, PATIENCE_SECONDS)
        assert found is not None
        begun, prompted, ended = (float(moment) - at for moment in found.groups())
        requests = [one for one in self.github.requests if one.began >= at and "/hook" not in one.path]
        received = self.wire.between(at, at + begun)
        return Asked(
            **moments, begun=begun, prompted=prompted, ended=ended, received=received, requests=requests, at=at
        )

    async def rest(self) -> None:
        """Wait until the bot has been idle for a while, also with what it does beside turns."""
        quiet_since = time.monotonic()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while time.monotonic() - quiet_since < REST_SECONDS:
                if self.wire.open or await asyncio.to_thread(self._is_at_work):
                    quiet_since = time.monotonic()
                await asyncio.sleep(0.2)

    async def shared_blocks(self) -> None:
        """Wait until each worktree has had its turn to share blocks with another."""

        async def all_shared() -> bool:
            return not any(self.here.data_dir.glob(f"repos/*/*/worktrees/*/{MARK}"))

        await eventually(all_shared, PATIENCE_SECONDS)

    async def beside_each_agent(self, repository: Repository, count: int) -> float:
        """Return the memory of the bot's processes for each running turn, in MB, while so many agents do nothing."""
        threads = [await self.issue(repository) for _ in range(count)]
        await self.rest()
        before = _memory_mb(self.here.processes[0].pid, self.agent)[0]
        asking = [asyncio.create_task(self.ask(thread, "wait go\nwrite go: on")) for thread in threads]

        async def all_begun() -> bool:
            return _memory_mb(self.here.processes[0].pid, self.agent)[1] == count

        await eventually(all_begun, PATIENCE_SECONDS)
        await asyncio.sleep(REST_SECONDS)
        meanwhile = _memory_mb(self.here.processes[0].pid, self.agent)[0]
        for thread in threads:
            (self.here.data_dir / f"worktrees/{repository.full_name}/issue-{thread.number}/go").touch()
        await asyncio.gather(*asking)
        return (meanwhile - before) / count

    def _is_at_work(self) -> bool:
        """Return whether a clone is not whole yet, or a process works in it or in a worktree."""
        repositories = self.here.data_dir / "repos"
        return any(repositories.glob("*/*.git/shallow")) or _is_named(self.here.data_dir)


def _is_named(directory: Path) -> bool:
    """Return whether a process has something below this directory among its arguments."""
    for arguments in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if f"{directory}/" in arguments.read_text(errors="replace"):
                return True
    return False


def _memory_mb(pid: int, agent: Path) -> tuple[float, int]:
    """Return the proportional memory of a process and all below it but the agents, and how many agents there are."""
    kilobytes, agents, found = 0, 0, [pid]
    for one in found:
        with suppress(OSError):  # it has ended
            found += children_of(one)
            if Path(f"/proc/{one}/cmdline").read_text().split("\0")[1:2] == [str(agent)]:
                agents += 1
                continue
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes * 1024 / 1e6, agents


@asynccontextmanager
async def stage(parent: Path | None) -> AsyncIterator[Stage]:
    """Start `serve` with agents in sandboxes, everything below `parent`; Postgres and GitHub are this machine's too."""
    with tempfile.TemporaryDirectory(prefix="threadtree-bench-", dir=parent, ignore_cleanup_errors=True) as directory:
        folder, wire = Path(directory), Wire()

        async def handle(traffic: Traffic, *connection: Any) -> None:
            await wire.handle(traffic, *connection)

        with patch.object(Traffic, "__call__", handle):
            async with (
                embedded_postgres(folder / "postgres", None) as database_url,
                deployment(folder, database_url, interpreters=True, webhooks_at_once=16) as here,
            ):
                command, agent = agent_in_a_folder(folder), folder / "agent"
                shutil.copy(timed_agent.__file__, agent / "__main__.py")
                here.environment |= {**_LIFTED, "AGENT_SANDBOX": "bwrap", "AGENT_COMMAND": command}
                serve = await here.start_listening()
                await serve.ready()
                yield Stage(here, wire, agent)
                await serve.terminate()
