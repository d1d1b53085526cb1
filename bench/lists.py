"""How long a list and a dry prune of many worktrees take, beside `git status` in each of them, two at once."""

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import orjson

from bench.repository import Repository, worktree_rows
from bench.sweep import age
from bot.postgres.embedded import embedded_postgres
from bot.store.migrate import migrate

LIMIT = 3.0
"""Limit of each command, as a multiple of the time of the `git status` processes, its start included."""
AT_ONCE = 2
COMMANDS = {
    "worktrees list --json": ("worktrees", "list", "--json"),
    "worktrees prune --dry-run --json": ("worktrees", "prune", "--dry-run", "--json", "--force"),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """The seconds of a command over all worktrees, and of the `git status` processes right before and after it."""

    command: str
    seconds: float
    status_seconds: float

    @property
    def holds(self) -> bool:
        """Return whether the limit is kept."""
        return self.seconds <= LIMIT * self.status_seconds


async def measure(total: int, sandbox: str) -> list[Figure]:
    """List and prune `total` worktrees of 20 files on this branch each, last used a year ago."""
    with tempfile.TemporaryDirectory(prefix="threadtree-bench-", ignore_cleanup_errors=True) as directory:
        repository = await Repository.make(Path(directory), 20)
        paths = await _worktrees(repository, total)
        async with embedded_postgres(Path(directory) / "postgres", None) as dsn:
            await migrate(dsn)
            environment = {
                "PATH": os.environ["PATH"],
                "HOME": directory,
                "DATA_DIR": str(repository.data_dir),
                "DATABASE_URL": dsn,
                "AGENT": "custom",
                "AGENT_COMMAND": "true",
                "AGENT_SANDBOX": sandbox,
            }
            await _run(environment, "worktrees", "list")  # from now on the node has an id
            connection = await asyncpg.connect(dsn)
            node = await connection.fetchval("select id from nodes")
            await connection.execute(worktree_rows(node, total, due=total))
            await connection.close()
            await _run(environment, "worktrees", "list", "--json")  # the first look makes what a sandbox keeps
            found = []
            for name, arguments in COMMANDS.items():
                before = await _statuses(paths)
                begin = time.perf_counter()
                shown = orjson.loads(await _run(environment, *arguments))
                seconds = time.perf_counter() - begin
                _check(shown, total)
                found.append(Figure(name, seconds, (before + await _statuses(paths)) / 2))
            return found


async def _worktrees(repository: Repository, total: int) -> list[Path]:
    """Make one worktree as a turn does, and the others as copies of it."""
    first = await repository.worktree(1)
    age(repository, first, 1)
    await asyncio.to_thread(_copies, repository, first, total)
    return [first.with_name(f"issue-{number}") for number in range(1, total + 1)]


def _copies(repository: Repository, first: Path, total: int) -> None:
    clone = repository.clone.path
    tip = (clone / "refs" / "heads" / "threadtree" / "issue-1").read_text()
    for number in range(2, total + 1):
        path, admin = first.with_name(f"issue-{number}"), clone / "worktrees" / f"issue-{number}"
        shutil.copytree(first, path)
        shutil.copytree(clone / "worktrees" / "issue-1", admin)
        (path / ".git").write_text(f"gitdir: {admin}\n")
        (admin / "gitdir").write_text(f"{path}/.git\n")
        (admin / "HEAD").write_text(f"ref: refs/heads/threadtree/issue-{number}\n")
        (clone / "refs" / "heads" / "threadtree" / f"issue-{number}").write_text(tip)
        age(repository, path, number)


async def _statuses(paths: Sequence[Path]) -> float:
    """Return the seconds of `git status` in each worktree, AT_ONCE at once."""
    at_once = asyncio.Semaphore(AT_ONCE)

    async def one(path: Path) -> None:
        async with at_once:
            await (await asyncio.create_subprocess_exec("git", "status", "--porcelain", cwd=path)).wait()

    begin = time.perf_counter()
    await asyncio.gather(*map(one, paths))
    return time.perf_counter() - begin


async def _run(environment: dict[str, str], *arguments: str) -> bytes:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bot", *arguments, env=environment, stdout=pipe, stderr=pipe
    )
    shown, logged = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{arguments} ended with {process.returncode}: {logged.decode()[-2000:]}")
    return shown


def _check(shown: object, total: int) -> None:
    match shown:
        case list():
            whole = len(shown) == total and all(one["changed_files"] == 0 for one in shown)
        case {"deleted": list(deleted)}:
            whole = len(deleted) == total
        case _:
            whole = False
    if not whole:
        raise RuntimeError(f"not all worktrees were looked at: {str(shown)[:400]}")


def report(figures: Sequence[Figure]) -> bool:
    """Print the figures; return whether all keep the limit."""
    for one in figures:
        over = "" if one.holds else "  over the limit"
        ratio = one.seconds / one.status_seconds
        print(f"{one.command:34} {one.seconds:7.2f} s  {ratio:5.2f} x git status ({one.status_seconds:.2f} s){over}")
    return all(one.holds for one in figures)
