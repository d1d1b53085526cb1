"""The command line before a command runs."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from typer.testing import CliRunner

from bot.cli import processes
from bot.cli.main import app
from bot.cli.running import explained
from bot.settings import Settings

ONLY_WHERE_USED = {
    *("acp", "asyncpg", "claude_agent_sdk", "httpx", "procrastinate", "psycopg", "pydantic"),
    *("starlette", "structlog"),
}


def loaded_with(modules: str) -> set[str]:
    """Return the packages that are loaded once a new process has imported these modules."""
    program = f"import sys, {modules}; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return {name if name.startswith("bot.") else name.partition(".")[0] for name in said.split()}


def test_help_and_completion_load_nothing_that_only_commands_need() -> None:
    loaded = loaded_with("bot.cli.main")
    assert "bot" in loaded
    assert loaded & ONLY_WHERE_USED == set()


def test_a_list_loads_neither_the_job_engine_nor_githubs_client() -> None:
    loaded = loaded_with("bot.cli.calls, bot.settings, bot.store.database")
    assert "asyncpg" in loaded
    assert loaded & {"procrastinate", "psycopg", "gidgethub", "httpx", "starlette"} == set()


def test_what_lists_and_prunes_worktrees_loads_no_job_engine() -> None:
    loaded = loaded_with("bot.cli.worktrees, bot.serve.parts")
    assert "gidgethub" in loaded
    assert loaded & {"acp", "procrastinate", "psycopg"} == set()


def test_the_web_process_loads_neither_agents_nor_git_nor_the_job_engine_nor_githubs_client() -> None:
    loaded = loaded_with("bot.cli.processes, bot.serve.web, bot.settings, bot.store.migrate")
    assert "uvicorn" in loaded
    others = {"acp", "bot.markdown", "bot.tree", "gidgethub", "httpx", "procrastinate", "psycopg", "websockets"}
    assert loaded & others == set()


def test_a_process_that_starts_no_agent_loads_no_protocol_of_agents() -> None:
    loaded = loaded_with("bot.serve.process")
    assert "procrastinate" in loaded
    assert loaded & {"acp", "claude_agent_sdk"} == set()


def test_the_version_is_the_packages() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"threadtree {version('threadtree')}\n")


@pytest.mark.parametrize(("flags", "kept"), [([], False), (["--no-worktree-prune"], True)])
def test_a_flag_keeps_old_worktrees(monkeypatch: pytest.MonkeyPatch, flags: list[str], kept: bool) -> None:
    pruning: list[bool] = []

    async def note(settings: Settings, *_: object) -> None:
        pruning.append(settings.worktree_prune_enabled)

    @asynccontextmanager
    async def no_database(_: Settings) -> AsyncIterator[str]:
        yield "postgresql://"

    def run(work: Coroutine[Any, Any, None], *_: object) -> None:
        asyncio.run(work)

    monkeypatch.setattr("bot.serve.process.run_worker", note)
    monkeypatch.setattr(processes, "database_url", no_database)
    monkeypatch.setattr(processes, "run", run)
    for name, value in {"GITHUB_TOKEN": "ghp_0123456789", "AGENT": "custom", "AGENT_COMMAND": "/bin/true"}.items():
        monkeypatch.setenv(name, value)

    assert CliRunner().invoke(app, ["worker", *flags]).exit_code == 0

    assert pruning == [not kept]


async def test_an_error_names_the_file_or_the_database_that_cannot_be_used(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(FileNotFoundError) as no_file:
        missing.read_bytes()
    with pytest.raises(FileNotFoundError) as no_socket:
        await asyncpg.connect(f"postgresql://bot@/bot?host={missing}")

    assert explained(no_file.value) == ([f"{missing} cannot be used: No such file or directory"], 1)
    assert explained(no_socket.value) == (["DATABASE_URL cannot be used: [Errno 2] No such file or directory"], 1)


STOPPED_WHILE_IMPORTING = """
import os, sys, types
from bot.__main__ import main

class Stopped:  # what a finalizer raises gets lost, as what is raised below some C code
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv.pop()))

class Importing(types.ModuleType):
    def __getattr__(self, name):
        Stopped()
        sys.exit("went on")

sys.modules[sys.argv.pop(1)] = Importing("planted")
main()
"""


@pytest.mark.parametrize("command", ["serve", "web", "worker"])
@pytest.mark.parametrize(
    ("importing", "number"),
    [("typer", signal.SIGTERM), ("bot.cli.processes", signal.SIGTERM), ("bot.cli.processes", signal.SIGINT)],
)
def test_a_process_that_is_stopped_at_any_point_of_its_imports_ends_quietly(
    command: str, importing: str, number: signal.Signals
) -> None:
    argv = [sys.executable, "-c", STOPPED_WHILE_IMPORTING, importing, command, str(int(number))]
    ended = subprocess.run(argv, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
