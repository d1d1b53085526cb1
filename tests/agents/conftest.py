"""The setting for tests of real agents: programs, scripted models, a worktree and a home."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bot.agents.driver import AgentDone, AgentEvent, Launch, Outcome, PromptLimits, SessionOpened
from bot.agents.opening import driver_for
from bot.agents.presets import Access, NotInstalled, Preset, command_of, preset
from bot.agents.prompt_loop import AgentDriver
from tests.agents.install import PROGRAMS, node_folder
from tests.support.models.server import SimulatedModels

AGENTS = ("claude", "claude-acp", "codex", "gemini", "opencode")
PATIENT = PromptLimits(total_seconds=120, idle_seconds=120, cancel_grace_seconds=15)
END_SECONDS = 30.0
"""The limit of what a killed process needs to end: a busy machine takes seconds for what else takes milliseconds."""
KEY = "a-key-that-opens-nothing"


class Heard(list[AgentEvent]):
    """The events of a prompt; asks the agent to stop when the expected event comes."""

    def __init__(self, stop_at: Callable[[AgentEvent], bool] = lambda _: False) -> None:
        super().__init__()
        self.stop = asyncio.Event()
        self._stop_at = stop_at

    def __call__(self, event: AgentEvent) -> None:
        self.append(event)
        if self._stop_at(event):
            self.stop.set()


@dataclass(frozen=True, slots=True)
class Stage:
    """One agent, its models, its worktree and its home."""

    preset: Preset
    models: SimulatedModels
    launch: Launch

    @property
    def worktree(self) -> Path:
        return self.launch.cwd

    @property
    def home(self) -> Path:
        return Path(self.launch.environment["HOME"])

    @property
    def shows_system_files(self) -> bool:
        """Return whether this machine, or the sandbox around the test, shows the files that the preset asks for."""
        return all(Path(path).exists() for path in self.preset.system_files)

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[AgentDriver]:
        """Start a new process of the agent."""
        async with driver_for(self.preset.agent, self.launch, sleep=self._let_a_minute_pass) as driver:
            yield driver

    @asynccontextmanager
    async def session(self, resume: str | None = None) -> AsyncIterator[tuple[AgentDriver, SessionOpened]]:
        """Start a new process with a session."""
        async with self.agent() as driver:
            opened = await driver.open(resume)
            assert isinstance(opened, SessionOpened), opened
            yield driver, opened

    async def says(self, *lines: str, resume: str | None = None) -> tuple[SessionOpened, AgentDone]:
        """Run one turn: a process, a session, an answered prompt."""
        async with self.session(resume) as (driver, opened):
            outcome = await ask(driver, *lines)
            assert isinstance(outcome, AgentDone), outcome
            return opened, outcome

    def with_variables(self, **variables: str) -> "Stage":
        """Return the same stage with more environment variables."""
        environment = {**self.launch.environment, **variables}
        return replace(self, launch=replace(self.launch, environment=environment))

    def processes(self) -> list[str]:
        """Return the command lines of all processes with this agent's home."""
        home = f"HOME={self.home}\0".encode()
        running = [_command_line(process) for process in Path("/proc").iterdir() if process.name.isdecimal()]
        return [command for command, environment in running if home in environment]

    async def has_ended(self) -> bool:
        """Return whether all processes have ended within `END_SECONDS`."""
        deadline = asyncio.get_running_loop().time() + END_SECONDS
        while self.processes() and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.02)
        return not self.processes()

    async def _let_a_minute_pass(self, seconds: float) -> None:
        """Rename the sessions of this minute as if they were old, so that the test need not wait."""
        minute = f"session-{datetime.now(UTC):%Y-%m-%dT%H-%M}-"
        for path in self.home.glob(f".gemini/tmp/*/chats/{minute}*"):
            earlier = len(list(path.parent.glob("session-2020*")))
            path.rename(path.with_name(path.name.replace(minute, f"session-2020-01-01T00-{earlier:02}-")))


def _command_line(process: Path) -> tuple[str, bytes]:
    """Return the command line and environment of a process; empty if it has ended."""
    try:
        environment = (process / "environ").read_bytes()
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"), environment
    except OSError:
        return "", b""


async def ask(driver: AgentDriver, *lines: str, limits: PromptLimits = PATIENT, heard: Heard | None = None) -> Outcome:
    """Prompt the agent with these lines as the request, the last block."""
    heard = Heard() if heard is None else heard
    return await driver.prompt(["A thread of octo/hello.", "\n".join(lines)], limits, heard.stop, heard)


@pytest.fixture
async def models() -> AsyncIterator[SimulatedModels]:
    async with SimulatedModels.running() as running:
        yield running


@pytest.fixture(params=AGENTS)
def stage(request: pytest.FixtureRequest, models: SimulatedModels, tmp_path: Path) -> Stage:
    chosen = preset(request.param)
    assert chosen is not None
    path = os.pathsep.join([str(PROGRAMS), str(node_folder()), os.defpath])
    command = command_of(chosen, path)
    if isinstance(command, NotInstalled):
        pytest.skip(f"{command.reason} `make test-agents` installs the agents")
    worktree, home = tmp_path / "worktree", tmp_path / "home"
    home.mkdir()
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(worktree)], check=True)
    access = Access(chosen.apis[0], models.url, KEY)
    environment = {**chosen.environment(access), "HOME": str(home), "PATH": path, "LANG": "C.UTF-8"}
    return Stage(chosen, models, Launch(command, environment, worktree))
