"""The setting of a history: a remote, a database, workers that die and start, an agent that the test controls."""

import asyncio
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, cast

import asyncpg
import pytest

from bot.agents.driver import AgentDone, Failed, PromptLimits
from bot.ask import Ask
from bot.files import real_path
from bot.github.client import GitHub
from bot.inbox.decider import Decider, GitHubFacts
from bot.locks import worker_lock
from bot.model import Actor, Repository, Target, Thread
from bot.node.identity import identify
from bot.node.launching import Launcher
from bot.redaction import Redactor
from bot.rules import Rules
from bot.sandbox.bwrap import Bwrap
from bot.store.conversations import save_codebase
from bot.store.database import Pool
from bot.store.turns import ClaimedTurn
from bot.thread.authority import Policy
from bot.tree import move_in
from bot.tree.clone.admin import admin_directory
from bot.tree.clone.clone import Clone, clone_lock
from bot.tree.clone.fetch import update
from bot.tree.git.runner import Identity
from bot.turn import claims
from bot.turn.choose_worktree import PullRequestHead
from bot.turn.context import TurnContext
from bot.turn.parsing import Command, Request
from bot.turn.request import Nodes
from bot.turn.runner import Runner
from bot.turn.turn import run_turn
from bot.turn.turn_run import TurnRun
from bot.verbs import VERBS
from tests.support.git_repositories import BOT, GIT, PERSON, SEARCH_PATH, git, usable_sandbox
from tests.support.histories.database import NODE, empty
from tests.support.histories.fakes import ARRIVALS, ManualAgent, QuietGitHub
from tests.support.histories.inventory import Inventory, content_id, refs_of
from tests.support.node_id import record
from tests.support.patience import PATIENCE_SECONDS

REPOSITORY = Repository("github.com", 1, "octo", "hello", "main")
BEGINNINGS: dict[Path, tuple[Path, dict[str, str]]] = {}
"""A copy of the first state of each folder of histories, and the contents in it."""
ADA = Actor("ada", 7)


@dataclass(slots=True)
class Worker:
    """A worker process: alive while it holds its lock."""

    name: str
    runner: Runner
    lock: ExitStack

    def dies(self) -> None:
        """Die as from kill -9: only the kernel cleans up."""
        self.lock.close()


@dataclass(slots=True)
class Run:
    """One running turn; `arrival` is set when the agent is at work."""

    turn: ClaimedTurn
    worker: Worker
    arrival: asyncio.Future[ManualAgent]
    run: TurnRun
    task: asyncio.Task[None]


@dataclass(slots=True)
class HistoryNode:
    """One node, its database, and the repository octo/hello on its remote."""

    root: Path
    pool: Pool
    ctx: TurnContext
    ledger: Inventory
    worker: Worker
    now: datetime
    began: datetime
    locks: ExitStack
    runs: list[Run] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(100))

    @classmethod
    async def make(cls, root: Path, pool: Pool, sandbox: Literal["off", "bwrap"]) -> "HistoryNode":
        """Create a remote with a few commits on `main`, and a node with a clone of it, and no worktree."""
        remote, data = root / "remotes" / "octo" / "hello.git", root / "data"
        ground: HistoryNode

        def clock() -> datetime:
            ground.now += timedelta(milliseconds=1)
            return ground.now

        ctx = TurnContext(
            pool=pool,
            github=cast(GitHub, QuietGitHub()),
            git=GIT if sandbox == "off" else replace(GIT, sandbox=usable_sandbox(data)),
            node=NODE,
            data_dir=data,
            server_url=(root / "remotes").as_uri(),
            clock=clock,
            policy=Policy(1, "threadtree[bot]", "threadtree", "threadtree", comments_per_hour=10**6),
            author=Identity(BOT.name, BOT.email),
            rules=Rules(agents=("custom",), agent="custom"),
            agent_variables={"custom": {}},
            launcher=Launcher("host", SEARCH_PATH, "C.UTF-8", {"custom": ("true",)}),
            verbs=VERBS,
            allow_workflow_changes=False,
            limits=PromptLimits(PATIENCE_SECONDS, PATIENCE_SECONDS),
            redactor=Redactor(),
        )
        clone = ctx.clone("octo/hello").path
        before, written = BEGINNINGS.get(root, (None, {}))
        if before is not None:
            shutil.copytree(before, root, copy_function=os.link)
        ledger = Inventory(remote, clone, data, dict(written))
        locks = ExitStack()
        began = datetime.now(UTC)
        ground = cls(root, pool, ctx, ledger, _worker(ctx, locks), began, began, locks)
        await empty(pool)
        if before is None:
            await ground._begin()
        return ground

    async def _begin(self) -> None:
        """Make the beginning of all histories in this folder."""
        self.remote.mkdir(parents=True)
        git(self.remote, "init", "-q", "--bare", "--initial-branch=main", "--template=")
        self.push("refs/heads/main", {".gitignore": "*.ign\n", "README.md": self.content("README.md")})
        for name in ("a", "README.md"):
            self.push("refs/heads/main", {name: self.content(name)})
        record(self.ctx.data_dir, NODE)
        async with clone_lock(self.clone) as lock:
            await update(lock, self.remote.as_uri())
        before = self.root.with_name(f"{self.root.name}.beginning")
        shutil.copytree(self.root, before, ignore=shutil.ignore_patterns("workers"))
        BEGINNINGS[self.root] = before, dict(self.ledger.written)

    # Acts of people on GitHub and on the remote

    @property
    def remote(self) -> Path:
        return self.ledger.remote

    def content(self, name: str) -> str:
        """Return a content that was never written before."""
        text = f"{name} {next(self.numbers)}\n"
        self.ledger.written[content_id(text.encode())] = text.strip()
        return text

    def secret(self) -> str:
        """Return a content for an ignored file: it need not be rescued."""
        return f"secret {next(self.numbers)}\n"

    def push(
        self,
        ref: str,
        files: Mapping[str, str],
        *,
        onto: str | None = None,
        tree: str | None = None,
        force: bool = False,
    ) -> None:
        """Push a person's commit to a full ref of the remote, on top of its tip or of `onto`, with `tree` or `files`
        changed.
        """
        remote = refs_of(self.remote)
        base = onto or remote.get(ref) or remote.get("refs/heads/main")
        number = next(self.numbers)
        lines = [f"commit {ref}", f"committer person <person@example.com> {1_700_000_000 + number} +0000"]
        lines += [*_data(f"change {number}"), *([f"from {base}"] if base else [])]
        lines += [f'M 040000 {tree} ""'] if tree else []
        for name, text in files.items():
            lines += [f"M 100644 inline {name}", *_data(text)]
        argv = ["git", "fast-import", "--quiet", *(["--force"] if force else [])]
        done = subprocess.run(
            argv,
            cwd=self.remote,
            input="\n".join([*lines, ""]),
            env={"PATH": os.environ["PATH"]},
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    async def ask(self, number: int, pull: PullRequestHead | None = None, commands: tuple[Command, ...] = ()) -> None:
        """Ask in the thread for the commands, or for work without any, as decide writes it down."""
        comment = next(self.numbers)
        thread = Thread(number, "issue" if pull is None else "pull", f"Thread {number}", None)
        ask = Ask("do it", ADA, self.later(), Target("comment", comment))
        names = tuple(command.words for command in commands)
        request = Request(REPOSITORY, thread, ask, f"comment {comment}", commands, names, asks=not commands)
        open_thread = Thread(0, "issue", "A title", None)
        facts = GitHubFacts(None if commands else ask, pull=pull, thread=open_thread)
        async with self.pool.acquire() as connection, connection.transaction():
            decider = Decider(
                self.pool,
                self.ctx.github,
                "github.example",
                "https://github.example",
                self.ctx.policy,
                self.ctx.rules,
                Nodes(NODE),
                self.ctx.verbs,
                lambda: self.now,
            )
            await save_codebase(connection, REPOSITORY)
            await decider.handle_request(connection, request, facts)

    def later(self) -> datetime:
        """Return the time, a little later on each call."""
        self.now += timedelta(seconds=10)
        return self.now

    async def put_forward(self, days: float) -> None:
        """Move the clock of the bot and of its database, but not the times of files."""
        self.now += timedelta(days=days)
        await self.pool.execute("update clock.hand set ahead = ahead + $1", timedelta(days=days))

    # Acts of workers

    async def claim(self, worker: Worker | None = None) -> Run | None:
        """Claim the next turn and begin it; None if none can run now."""
        mine = worker or self.worker
        async with self.pool.acquire() as connection:
            claimed = await claims.claim_next(connection, NODE, mine.name, 10, self.ctx.clock(), with_agent=True)
        if claimed is None:
            return None
        place = str(self.ctx.directory(claimed.worktree.path))
        for earlier in [run for run in self.runs if run.turn.worktree.id == claimed.worktree.id]:
            # It was stopped; its row ends before its task does.
            assert await self.state_of(earlier) != "running", f"two turns in {place}"
            await self._until_ended(earlier)
        arrival = ARRIVALS[place] = asyncio.get_running_loop().create_future()
        turn_run = TurnRun(self.ctx, claimed)
        run = Run(claimed, mine, arrival, turn_run, asyncio.create_task(run_turn(turn_run)))
        self.runs.append(run)
        return run

    async def run_alone(self) -> None:
        """Run the turns that need no agent, one after the other, as long as there are any."""
        while True:
            mine = NODE, self.worker.name, 10, self.ctx.clock()
            async with self.pool.acquire() as connection:
                claimed = await claims.claim_next(connection, *mine, with_agent=False)
            if claimed is None:
                return
            await run_turn(TurnRun(self.ctx, claimed))

    async def at_work(self, run: Run) -> bool:
        """Wait until the agent is at work; return False if the turn ended before. Raises the error that ended it."""
        either: set[asyncio.Future[Any]] = {run.arrival, run.task}
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if run.arrival.done():
            return True
        try:
            await run.task
        finally:
            self._left(run)
        return False

    async def finish(self, run: Run, outcome: Literal["done", "failed"]) -> str:
        """Let the agent end, and the turn with it; return the turn's state."""
        ended = AgentDone("It is done.") if outcome == "done" else Failed("It broke.", "")
        run.arrival.result().outcome.set_result(ended)
        await self._until_ended(run)
        return await self.state_of(run)

    async def stop(self) -> None:
        """Let turns end that were asked to stop."""
        query = "select id from turns where state = 'running' and stop_requested_at is not null"
        asked = {row["id"] for row in await self.rows(query)}
        for run in [run for run in self.runs if run.turn.id in asked]:
            run.run.stop.set()
            await self._until_ended(run)

    async def state_of(self, run: Run) -> str:
        """Return the state of the run's row, and the reason for it."""
        row = await self.pool.fetchrow("select state, reason from turns where id = $1", run.turn.id)
        return f"{row['state']}: {row['reason']}" if row["reason"] else str(row["state"])

    async def kill(self) -> None:
        """Kill the worker with everything it runs; another one takes its place and recovers."""
        dead, self.worker = self.worker, _worker(self.ctx, self.locks)
        dead.dies()
        mine = [run for run in self.runs if run.worker is dead]
        for run in mine:
            # As at the end of a process: nothing is handed back.
            self._left(run)
        await _end_without_a_word([run.task for run in mine])
        await self.move_in(NODE)

    async def restart(self, data_dir: Path, name: str) -> None:
        """Kill all workers, and start again with DATA_DIR at `data_dir` and the node's label `name`."""
        self.locks.close()
        runs = list(self.runs)
        for run in runs:
            self._left(run)
        await _end_without_a_word([run.task for run in runs])
        self.ctx.data_dir.rename(data_dir)
        sandbox = self.ctx.git.sandbox
        if isinstance(sandbox, Bwrap):
            sandbox = replace(sandbox, data_dir=data_dir, data_dir_alias=data_dir)
        self.ctx = replace(self.ctx, data_dir=data_dir, git=replace(self.ctx.git, sandbox=sandbox))
        self.ledger.data, self.ledger.clone = data_dir, self.clone.path
        self.worker = _worker(self.ctx, self.locks)
        await self.move_in(name)

    async def move_in(self, name: str) -> None:
        """Do what a process does first, and recover."""
        await identify(self.pool, self.ctx.data_dir, name)
        await move_in(self.ctx.data_dir, self.ctx.git)
        await self.worker.runner.recover()

    async def another_worker(self) -> Worker:
        """Return one more process of this node, which never dies."""
        return _worker(self.ctx, self.locks)

    async def _until_ended(self, run: Run) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await run.task
        finally:
            self._left(run)

    def _left(self, run: Run) -> None:
        self.runs = [one for one in self.runs if one is not run]
        ARRIVALS.pop(str(self.ctx.directory(run.turn.worktree.path)), None)

    async def rows(self, query: str, *values: object) -> list[asyncpg.Record]:
        return list(await self.pool.fetch(query, *values))

    # State on disk

    @property
    def clone(self) -> Clone:
        return self.ctx.clone("octo/hello")

    def entry_paths(self) -> list[Path]:
        """Return the worktrees in git's records."""
        pointers = sorted(self.clone.path.glob("worktrees/*/gitdir"))
        return [Path(pointer.read_text().strip()).parent for pointer in pointers]

    def directories(self) -> list[Path]:
        """Return everything in the folder of worktrees."""
        folder = self.ctx.data_dir / "worktrees" / "octo" / "hello"
        return [one for one in sorted(folder.glob("*")) if one.suffix != ".json" and not one.name.startswith(".")]

    def admin(self, path: Path) -> Path | None:
        """Return git's folder for the worktree at this path."""
        found = admin_directory(self.clone.path, path)
        return found if isinstance(found, Path) else None

    def state(self, path: Path) -> Path | None:
        """Return the folder with a worktree's HEAD and index."""
        admin = self.admin(path)
        if admin is None:
            return None
        return self.ctx.git.sandbox.view(self.clone.path.resolve(), real_path(path), admin).state

    def agent(self, path: Path, *command: str, **environment: str) -> None:
        """Run a command as the agent does, in its sandbox if there is one; a failure is ignored."""
        sandbox, argv = self.ctx.git.sandbox, list(command)
        home = self.ctx.data_dir / "homes" / "1"
        home.mkdir(parents=True, exist_ok=True)
        if sandbox.isolates:
            admin = self.admin(path)
            assert admin is not None
            view = sandbox.view(self.clone.path.resolve(), real_path(path), real_path(admin))
            argv = list(sandbox.agent_argv(view, command, home, path))
        everything = {"PATH": SEARCH_PATH, "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"} | PERSON | environment
        subprocess.run(argv, cwd=path, env=everything, capture_output=True, check=False)


async def close(ground: HistoryNode) -> None:
    """Leave no task and no lock."""
    tasks = [run.task for run in ground.runs]
    ground.runs.clear()
    await _end_without_a_word(tasks)
    ARRIVALS.clear()
    ground.locks.close()
    for path in ground.directories():
        if isinstance(sandbox := ground.ctx.git.sandbox, Bwrap) and (admin := ground.admin(path)) is not None:
            sandbox.enforcement.remove_group(sandbox.view(ground.clone.path.resolve(), real_path(path), admin).name)


async def _end_without_a_word(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks as if the process had ended: nothing is handed back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bot.turn.turn.hand_back", _nothing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _nothing(_: TurnRun) -> None:
    return


def _worker(ctx: TurnContext, locks: ExitStack) -> Worker:
    lock = locks.enter_context(ExitStack())
    name = lock.enter_context(worker_lock(ctx.workers))
    return Worker(name, Runner(ctx, name, 10, 10), lock)


def _data(text: str) -> list[str]:
    return [f"data {len(text.encode())}", text]
