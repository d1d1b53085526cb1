"""The command `threadtree` as real processes, with a simulated GitHub and a real Postgres."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import orjson

from bot.demo.pair import SCRIPTED_AGENT
from bot.serve.base import redactor_of
from bot.serve.web import run_web
from bot.settings import WEB, load
from bot.simulated.github.model import Comment, Issue, Repository
from bot.simulated.github.person import Person
from bot.simulated.github.server import SimulatedGitHub
from tests.support.fork_server import Started, fork, new_interpreter
from tests.support.patience import PATIENCE_SECONDS, eventually, until_exists

SECRET = "a webhook secret of this test"
LAST_LINES = 15


class BotProcess:
    """One running `threadtree …`; `lines` is its stderr so far."""

    def __init__(self, command: str, process: Started) -> None:
        self.command = command
        self.lines: list[str] = []
        self.stdout = b""
        self._process = process
        self._reading = asyncio.gather(self._read_stderr(), self._read_stdout())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    @property
    def is_killed(self) -> bool:
        return self._process.returncode == -signal.SIGKILL

    @property
    def stderr(self) -> str:
        return "\n".join(self.lines)

    def events(self, name: str) -> list[dict[str, object]]:
        """Return the lines of its log with this event's name."""
        logged = (orjson.loads(line) for line in self.lines if line.startswith("{"))
        return [event for event in logged if event.get("event") == name]

    async def said(self, name: str) -> None:
        """Wait until it has logged this event."""

        async def logged() -> bool:
            return bool(self.events(name))

        await eventually(logged, what=self.tail)

    @property
    def errors(self) -> list[str]:
        """Return the logged errors and tracebacks."""
        return [line for line in self.lines if '"level": "error"' in line or line.startswith("Traceback")]

    async def url(self) -> str:
        """Return the address on which it listens, once it has logged it."""

        async def said() -> str | None:
            assert self.is_running, f"{self.command} has ended:\n{self.stderr}"
            return next((str(event["address"]) for event in self.events("listening")), None)

        found = await eventually(said, what=self.tail)
        assert found is not None
        return found

    async def ready(self) -> None:
        """Wait until /readyz answers 200: database, schema and a worker are there."""
        await _until_ready(await self.url(), self.tail)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def kill(self) -> None:
        """Kill the process, and with `serve` its web and worker, with SIGKILL; wait for its end."""
        if self.command == "serve":
            os.killpg(self.pid, signal.SIGKILL)
        else:
            self.send(signal.SIGKILL)
        assert await self.ended() == -signal.SIGKILL

    async def terminate(self) -> int:
        """Send SIGTERM and return the exit status."""
        self.send(signal.SIGTERM)
        return await self.ended()

    async def ended(self) -> int:
        """Return the exit status, once it has ended and all output was read."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.shield(self._reading)
                return await self._process.wait()
        except TimeoutError as error:
            raise TimeoutError(f"not ended within {PATIENCE_SECONDS} s:\n{await self.tail()}") from error

    async def tail(self) -> str:
        """Return the last lines of the log, to find out why an event did not happen."""
        return "\n".join([f"{self.command} ({'running' if self.is_running else 'ended'}):", *self.lines[-LAST_LINES:]])

    async def clean_up(self) -> None:
        """End the process in any state."""
        if self.is_running:
            with suppress(ProcessLookupError):
                self.send(signal.SIGKILL)  # this also ends a suspended process
        await self.ended()

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self.lines.append(line.decode().rstrip())

    async def _read_stdout(self) -> None:
        assert self._process.stdout is not None
        while piece := await self._process.stdout.read(1 << 16):
            self.stdout += piece


@dataclass(slots=True)
class Deployment:
    """GitHub with one repository and a maintainer, a database, and the started processes."""

    github: SimulatedGitHub
    repository: Repository
    maria: Person
    directory: Path
    environment: dict[str, str]
    stack: AsyncExitStack
    processes: list[BotProcess] = field(default_factory=list)
    interpreters: bool = False
    """Each start is that of a new interpreter, as an operator's is, and not a fork of one with all imports."""
    tolerated: str | None = None
    """A text in every error that the test causes on purpose."""

    @property
    def data_dir(self) -> Path:
        return Path(self.environment["DATA_DIR"])

    @property
    def dsn(self) -> str:
        return self.environment["DATABASE_URL"]

    async def start(self, *arguments: str, **settings: str) -> BotProcess:
        """Start a command; an empty setting counts as unset. It ends with the deployment."""
        return await self.start_program("-m", "bot", *arguments, command=arguments[0], **settings)

    async def start_program(self, *arguments: str, command: str, **settings: str) -> BotProcess:
        """Start Python with these arguments, which run a command of the bot."""
        start = new_interpreter if self.interpreters else fork
        process = BotProcess(command, await start(arguments, {**self.environment, **settings}, self.directory))
        self.processes.append(process)
        self.stack.push_async_callback(process.clean_up)
        return process

    async def start_listening(self, command: str = "serve", **settings: str) -> BotProcess:
        """Start `serve` or `web` and point GitHub's webhook to it."""
        process = await self.start(command, **settings)
        self.github.set_webhook(f"{await process.url()}/webhooks/github", SECRET)
        return process

    async def listen_here(self, **settings: str) -> Callable[[], Awaitable[None]]:
        """Do in this process what `web` does, and point GitHub's webhook to it; for tests that only kill workers.

        Return a function that waits until /readyz answers 200.
        """
        chosen = load({**self.environment, **settings}, dotenv=None, needs=WEB)
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        web = asyncio.create_task(run_web(chosen, self.dsn, redactor_of(chosen), listening.set_result))

        async def end() -> None:
            web.cancel()
            with suppress(asyncio.CancelledError):
                await web

        self.stack.push_async_callback(end)
        first: list[asyncio.Future[Any]] = [web, listening]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if web.done():
            web.result()
        self.github.set_webhook(f"{listening.result()}/webhooks/github", SECRET)
        return partial(_until_ready, listening.result(), self._tails)

    async def run(self, *arguments: str, **settings: str) -> BotProcess:
        """Run a command to its end."""
        process = await self.start(*arguments, **settings)
        await process.ended()
        return process

    async def ask(self, request: str, issue: Issue | None = None) -> Issue:
        """Mention the bot as maria with this request, in a new issue unless one is given."""
        thread = issue or await self.maria.open_issue(self.repository, "Something to do")
        await self.maria.comment(thread, f"@{self.github.bot.login} {request}")
        return thread

    def answers(self, issue: Issue) -> list[Comment]:
        """Return the bot's comments on the thread."""
        return issue.comments_by(self.github.bot)

    async def answered(self, issue: Issue, words: str, seconds: float = PATIENCE_SECONDS) -> Comment:
        """Wait for the bot's first comment with these words."""

        def found() -> Comment | None:
            return next((comment for comment in self.answers(issue) if words in comment.body), None)

        comment = await self.github.wait_for(found, seconds)
        assert comment is not None
        return comment

    async def value(self, query: str, *arguments: object) -> object:
        """Return the first value of the query's first row."""
        connection = await asyncpg.connect(self.dsn)
        try:
            return await connection.fetchval(query, *arguments)
        finally:
            await connection.close()

    async def until(self, query: str, *arguments: object, seconds: float = PATIENCE_SECONDS) -> object:
        """Wait for the query's first true value."""
        connection = await asyncpg.connect(self.dsn)
        try:
            return await eventually(lambda: connection.fetchval(query, *arguments), seconds, self._tails)
        finally:
            await connection.close()

    async def deciding(self, issue: Issue) -> None:
        """Wait until a worker handles the delivery of this issue."""
        await self.until(
            "select count(*) > 0 from procrastinate_jobs j join deliveries d on d.guid = j.args ->> 'guid' "
            "where j.status = 'doing' and d.event = 'issue_comment' and d.conversation = $1",
            f"{self.repository.full_name}#{issue.number}",
        )

    async def at_work(self, issue: Issue) -> Path:
        """Wait until the issue's agent has made the file `started`; return its worktree."""
        path = await self.until("select path from worktrees where start_number = $1 and state = 'ready'", issue.number)
        worktree = self.data_dir / str(path)
        await until_exists(worktree / "started")
        return worktree

    async def nothing_to_write(self) -> None:
        """Wait until no process writes to GitHub: the others wait a minute for the lock of a suspended writer."""
        await self.until("select not exists (select from outbox where state in ('waiting', 'sending'))")
        await self.until("select not exists (select from pg_locks where locktype = 'advisory')")

    def agents_in(self, worktree: Path | None = None) -> list[int]:
        """Return the processes that work in this worktree, or in any of this deployment."""
        return processes_in(worktree or self.data_dir / "worktrees")

    async def no_agents(self) -> None:
        """Wait until no process works in a worktree."""

        async def none() -> bool:
            return not self.agents_in()

        await eventually(none, what=self._tails)

    async def _tails(self) -> str:
        return "\n".join([await process.tail() for process in self.processes])

    def end_agents(self) -> None:
        """End the agents that a failed test has left."""
        for pid in self.agents_in():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @asynccontextmanager
    async def stuck_before(self, table: str, condition: str) -> AsyncIterator[None]:
        """Block every commit of an update of `table` that fulfils `condition`, until the block ends.

        Then the waiting statements are cancelled, as those of a killed process: nothing was written.
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


async def _until_ready(url: str, what: Callable[[], Awaitable[str]]) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:

        async def is_ready() -> bool:
            return (await client.get(f"{url}/readyz")).status_code == 200

        await eventually(is_ready, what=what)


def processes_in(directory: Path) -> list[int]:
    """Return the processes whose working directory is below this one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(directory):
                found.append(int(process.name))
        except OSError:
            continue  # it has ended
    return found


def processes_with_arguments(*arguments: str) -> list[int]:
    """Return the processes whose command line has all of these."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_text().split("\0")
        except OSError:
            continue  # it has ended
        if all(argument in line for argument in arguments):
            found.append(int(process.name))
    return found


def children_of(pid: int) -> list[int]:
    """Return the processes that this one has started and that run."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def parent_of(pid: int) -> int:
    """Return the process that started this one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@asynccontextmanager
async def deployment(
    tmp_path: Path, database_url: str | None, *, interpreters: bool = False, webhooks_at_once: int = 1
) -> AsyncIterator[Deployment]:
    """Yield a deployment without processes; at the end check that all are gone and none has logged an error."""
    directory = tmp_path / "cwd"
    directory.mkdir()
    async with SimulatedGitHub.running(
        tmp_path / "github", lambda: datetime.now(UTC), webhooks_at_once=webhooks_at_once
    ) as github:
        github.webhook_timeout_seconds = PATIENCE_SECONDS
        repository = await github.create_repository("acme/shop")
        maria = github.person("maria")
        repository.allow(maria, "write")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "DATA_DIR": str(tmp_path / "data"),
            "DISK_RESERVE_GB": "0",
            "PORT": "0",
            "GITHUB_API_URL": github.api_url,
            "GITHUB_WEBHOOK_SECRET": SECRET,
            "GITHUB_TOKEN": github.bot_token,
            "AGENT": "custom",
            "AGENT_COMMAND": SCRIPTED_AGENT,
            "AGENT_SANDBOX": "off",
        }
        if database_url is not None:
            environment["DATABASE_URL"] = database_url
        async with AsyncExitStack() as stack:
            here = Deployment(github, repository, maria, directory, environment, stack, interpreters=interpreters)
            stack.callback(here.end_agents)
            yield here
        for process in here.processes:
            errors = [line for line in process.errors if here.tolerated is None or here.tolerated not in line]
            assert not errors, process.stderr
