"""The command `threadtree` as real processes, and the stage they play on: a simulated GitHub and a real Postgres."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import asyncpg
import httpx
import orjson

from bot.demo.pair import SCRIPTED_AGENT
from bot.simulated.github.model import Comment, Issue, Repository
from bot.simulated.github.person import Person
from bot.simulated.github.server import SimulatedGitHub

SECRET = "a webhook secret of this test"
DEADLINE_SECONDS = 45.0
T = TypeVar("T")


async def until(condition: Callable[[], Awaitable[T]], seconds: float = DEADLINE_SECONDS) -> T:
    """The condition's first true value: other processes bring it about."""
    async with asyncio.timeout(seconds):
        while not (value := await condition()):
            await asyncio.sleep(0.02)
    return value


async def until_exists(path: Path) -> None:
    """Waits for a file that another process makes."""

    async def exists() -> bool:
        return await asyncio.to_thread(path.exists)

    await until(exists)


class BotProcess:
    """One `threadtree …` that runs; `lines` is what it has said on stderr so far."""

    def __init__(self, command: str, process: asyncio.subprocess.Process) -> None:
        self.command = command
        self.lines: list[str] = []
        self.stdout = b""
        self._process = process
        self._reading = asyncio.gather(self._read_stderr(), self._read_stdout())

    @classmethod
    async def start(cls, *arguments: str, environment: dict[str, str], cwd: Path) -> "BotProcess":
        """Starts it with this environment and nothing else."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "bot", *arguments],
            env=environment,
            cwd=cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
        return cls(arguments[0], process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    @property
    def stderr(self) -> str:
        return "\n".join(self.lines)

    def events(self, name: str) -> list[dict[str, object]]:
        """The lines of its log with this event's name."""
        logged = (orjson.loads(line) for line in self.lines if line.startswith("{"))
        return [event for event in logged if event.get("event") == name]

    @property
    def errors(self) -> list[str]:
        """What it logged as an error, or said with a traceback."""
        return [line for line in self.lines if '"level": "error"' in line or "Traceback" in line]

    async def url(self) -> str:
        """Where it listens, once it has said so."""

        async def said() -> str | None:
            assert self.is_running, f"{self.command} has ended:\n{self.stderr}"
            return next((line.split()[3].rstrip(";") for line in self.lines if "listens on" in line), None)

        found = await until(said)
        assert found is not None
        return found

    async def ready(self) -> None:
        """Waits until /readyz answers 200: database, schema and some worker are there."""
        address = f"{await self.url()}/readyz"
        async with httpx.AsyncClient(trust_env=False) as client:

            async def is_ready() -> bool:
                return (await client.get(address)).status_code == 200

            await until(is_ready)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def kill(self) -> None:
        """kill -9, and its end."""
        self.send(signal.SIGKILL)
        assert await self.ended() == -signal.SIGKILL

    async def terminate(self) -> int:
        """SIGTERM, and the exit status."""
        self.send(signal.SIGTERM)
        return await self.ended()

    async def ended(self) -> int:
        """The exit status, once it has ended and everything it said was read."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            await self._reading
            return await self._process.wait()

    async def clean_up(self) -> None:
        """Ends it, whatever state it is in."""
        if self.is_running:
            self._process.kill()  # this also ends a suspended process
        await self.ended()

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self.lines.append(line.decode().rstrip())

    async def _read_stdout(self) -> None:
        assert self._process.stdout is not None
        self.stdout = await self._process.stdout.read()


@dataclass(slots=True)
class Stage:
    """GitHub with one repository and a maintainer, a database, and the processes that were started."""

    github: SimulatedGitHub
    repository: Repository
    maria: Person
    directory: Path
    environment: dict[str, str]
    stack: AsyncExitStack
    processes: list[BotProcess] = field(default_factory=list)
    expected_errors: int = 0

    @property
    def data_dir(self) -> Path:
        return Path(self.environment["DATA_DIR"])

    @property
    def dsn(self) -> str:
        return self.environment["DATABASE_URL"]

    async def start(self, *arguments: str, **settings: str) -> BotProcess:
        """Starts a command; an empty setting counts as unset. It has ended when the stage does."""
        environment = {**self.environment, **settings}
        process = await BotProcess.start(*arguments, environment=environment, cwd=self.directory)
        self.processes.append(process)
        self.stack.push_async_callback(process.clean_up)
        return process

    async def start_listening(self, command: str = "serve", **settings: str) -> BotProcess:
        """Starts `serve` or `web` and points GitHub's webhook to it."""
        process = await self.start(command, **settings)
        self.github.set_webhook(f"{await process.url()}/webhooks/github", SECRET)
        return process

    async def run(self, *arguments: str, **settings: str) -> BotProcess:
        """A command that ends by itself, after its end."""
        process = await self.start(*arguments, **settings)
        await process.ended()
        return process

    async def ask(self, request: str, issue: Issue | None = None) -> Issue:
        """Maria mentions the bot with this request, in a new issue unless one is given."""
        thread = issue or await self.maria.open_issue(self.repository, "Something to do")
        await self.maria.comment(thread, f"@{self.github.bot.login} {request}")
        return thread

    def answers(self, issue: Issue) -> list[Comment]:
        """What the bot has written in the thread."""
        return issue.comments_by(self.github.bot)

    async def answered(self, issue: Issue, words: str, seconds: float = DEADLINE_SECONDS) -> Comment:
        """The bot's first comment that says this, once it does."""

        def found() -> Comment | None:
            return next((comment for comment in self.answers(issue) if words in comment.body), None)

        comment = await self.github.wait_for(found, seconds)
        assert comment is not None
        return comment

    async def value(self, query: str, *arguments: object) -> object:
        """The first value of the query's first row."""
        connection = await asyncpg.connect(self.dsn)
        try:
            return await connection.fetchval(query, *arguments)
        finally:
            await connection.close()

    async def until(self, query: str, *arguments: object, seconds: float = DEADLINE_SECONDS) -> object:
        """The query's first true value."""
        connection = await asyncpg.connect(self.dsn)
        try:
            return await until(lambda: connection.fetchval(query, *arguments), seconds)
        finally:
            await connection.close()

    async def at_work(self, issue: Issue) -> Path:
        """The issue's worktree, once its agent has made the file `started` there."""
        path = await self.until("select path from worktrees where start_number = $1 and state = 'ready'", issue.number)
        worktree = Path(str(path))
        await until_exists(worktree / "started")
        return worktree

    def agents(self) -> list[int]:
        """The processes that work in this stage's worktrees."""
        return processes_in(self.data_dir / "worktrees")

    async def no_agents(self) -> None:
        """Waits until no process works in a worktree."""

        async def none() -> bool:
            return not self.agents()

        await until(none)

    @asynccontextmanager
    async def stuck_before(self, table: str, condition: str) -> AsyncIterator[None]:
        """While the block lasts, no process gets an update of `table` that fulfils `condition` committed.

        At its end the waiting statements are given up, as those of a process that was killed: nothing was written.
        """
        key = 7_421_003
        connection = await asyncpg.connect(self.dsn)
        try:
            await connection.execute("select pg_advisory_lock($1)", key)
            await connection.execute(
                f"create function stuck() returns trigger language plpgsql as "
                f"$$ begin perform pg_advisory_xact_lock({key}); return new; end $$; "
                f"create trigger stuck before update on {table} for each row when ({condition}) "
                f"execute function stuck()"
            )
            yield
            await connection.execute(
                "select pg_terminate_backend(pid, 10000) from pg_locks where locktype = 'advisory' and not granted "
                "and objid = $1",
                key,
            )
            await connection.execute(f"drop trigger stuck on {table}; drop function stuck")
        finally:
            await connection.close()


def processes_in(directory: Path) -> list[int]:
    """The processes whose working directory is below this one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if entry.readlink().is_relative_to(directory):
                found.append(int(entry.parent.name))
        except OSError:
            continue  # it has ended
    return found


@asynccontextmanager
async def stage(tmp_path: Path, database_url: str | None) -> AsyncIterator[Stage]:
    """A stage without any process yet; at its end all are gone, and none of them has logged an error."""
    directory = tmp_path / "cwd"
    directory.mkdir()
    async with SimulatedGitHub.running(tmp_path / "github", lambda: datetime.now(UTC)) as github:
        repository = await github.create_repository("acme/shop")
        maria = github.person("maria")
        repository.allow(maria, "write")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "DATA_DIR": str(tmp_path / "data"),
            "PORT": "0",
            "GITHUB_API_URL": github.api_url,
            "GITHUB_WEBHOOK_SECRET": SECRET,
            "GITHUB_TOKEN": github.bot_token,
            "AGENT": "custom",
            "AGENT_COMMAND": SCRIPTED_AGENT,
        }
        if database_url is not None:
            environment["DATABASE_URL"] = database_url
        async with AsyncExitStack() as stack:
            here = Stage(github, repository, maria, directory, environment, stack)
            yield here
        if here.expected_errors == 0:
            for process in here.processes:
                assert not process.errors, process.stderr
