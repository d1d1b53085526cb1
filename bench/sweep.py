"""How many directories a sweep over many worktrees opens and how long it takes, when few of them are due."""

import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import asyncpg

from bench.repository import Repository, git, worktree_rows
from bot import failpoints
from bot.care import prune, removing
from bot.node.context import NodeContext
from bot.node.launching import Launcher
from bot.postgres.embedded import embedded_postgres
from bot.redaction import Redactor
from bot.rules import Rules
from bot.store.database import database
from bot.store.migrate import migrate
from bot.tree.clone.metadata import Metadata
from tests.support.retention import policy_for

OF_EACH_DUE, CONSTANT = 4, 40
"""Directories that a sweep may open: the two of each worktree that is due, whose files tell when it was used, when it
is found and again when it is claimed; and besides so many, however many worktrees there are.
"""
SECONDS_BESIDE_REMOVALS = 1.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One sweep: `opened` directories in this process; `list_ms` is the time of `git worktree list` on the clone."""

    total: int
    due: int
    removed: int
    opened: int
    seconds: float
    removals_seconds: float
    list_ms: float

    @property
    def holds(self) -> bool:
        """Return whether all worktrees that were due are gone and the limits are kept."""
        beside = self.seconds - self.removals_seconds
        return (
            self.removed == self.due
            and self.opened <= OF_EACH_DUE * self.due + CONSTANT
            and beside <= SECONDS_BESIDE_REMOVALS
        )


async def measure(total: int, due: int) -> Figure:
    """Sweep `total` worktrees, all registered with git, of which `due` were last used a year ago."""
    with tempfile.TemporaryDirectory(prefix="threadtree-bench-", ignore_cleanup_errors=True) as directory:
        repository = await Repository.make(Path(directory), 20)
        folder = repository.data_dir / "worktrees" / "octo" / "big"
        for number in range(1, due + 1):
            age(repository, await repository.worktree(number), number)
        await asyncio.to_thread(fill_up, repository, folder, range(due + 1, total + 1))
        async with embedded_postgres(Path(directory) / "postgres", None) as dsn:
            await migrate(dsn)
            connection = await asyncpg.connect(dsn)
            await connection.execute("insert into nodes (id) values ('here')")
            await connection.execute(worktree_rows("here", total, due))
            await connection.close()
            list_ms = 1000 * git(repository.clone.path, "worktree", "list", "--porcelain")
            return await _sweep(repository, dsn, total, due, list_ms)


def age(repository: Repository, path: Path, number: int) -> None:
    """Make the worktree and the file beside it look as a turn left them a year ago."""
    then = datetime.now(UTC) - timedelta(days=365)
    for folder in (path, repository.clone.path / "worktrees" / path.name):
        for file in (folder, *folder.rglob("*")):
            os.utime(file, (then.timestamp(), then.timestamp()))
    known = Metadata(
        id=str(number),
        platform="github.com",
        repository_id=1,
        full_name="octo/big",
        conversations=(number,),
        branch=f"threadtree/issue-{number}",
        base="main",
        node="here",
        created_at=then,
        updated_at=then,
    )
    known.write(path)


def fill_up(repository: Repository, folder: Path, numbers: range) -> None:
    """Create registered worktrees without git, which would take an hour."""
    clone = repository.clone.path
    for number in numbers:
        path, admin = folder / f"issue-{number}", clone / "worktrees" / f"issue-{number}"
        for made in (path, admin):
            made.mkdir(parents=True)
        (path / ".git").write_text(f"gitdir: {admin}\n")
        (admin / "gitdir").write_text(f"{path}/.git\n")
        (admin / "commondir").write_text("../..\n")
        (admin / "HEAD").write_text("ref: refs/heads/main\n")
        (admin / "locked").write_text("in use\n")


async def _sweep(repository: Repository, dsn: str, total: int, due: int, list_ms: float) -> Figure:
    opened, counting, removals_seconds, claimed_at = 0, False, 0.0, 0.0

    def count(event: str, args: tuple[Any, ...]) -> None:
        nonlocal opened
        # Directories that are deleted afterwards do not count: they are opened by number, or in the trash.
        if counting and event in ("os.listdir", "os.scandir") and not isinstance(args[0], int):
            opened += not str(args[0]).startswith(str(repository.data_dir / "trash"))

    def listener(name: str) -> None:
        nonlocal claimed_at
        if name == "removal-decided":
            claimed_at = time.perf_counter()

    async def remove_idle(*args: Any) -> Any:
        nonlocal removals_seconds, counting
        counting = False
        try:
            return await removing.remove_idle(*args)
        finally:
            removals_seconds += time.perf_counter() - claimed_at  # includes the check under the lock
            counting = True

    sys.addaudithook(count)
    async with database(dsn, size=4) as pool:
        ctx = NodeContext(
            pool=pool,
            git=repository.clone.git,
            node="here",
            data_dir=repository.data_dir,
            server_url=repository.server_url,
            clock=lambda: datetime.now(UTC),
            github=None,
            redactor=Redactor(),
            launcher=Launcher("host", "", "C.UTF-8"),
            rules=Rules(agents=("custom",), agent="custom"),
        )
        policy = policy_for(ctx.clock(), detached_days=30, branch_days=90, orphan_days=90, rescue_days=180)
        watched = patch.object(prune, "remove_idle", remove_idle), patch.object(failpoints, "listener", listener)
        with watched[0], watched[1]:
            begin, counting = time.perf_counter(), True
            report = await prune.prune(ctx, lambda *_: policy)
            counting = False
    return Figure(total, due, len(report.deleted), opened, time.perf_counter() - begin, removals_seconds, list_ms)


def report(figure: Figure) -> bool:
    """Print the figure; return whether it keeps the limits."""
    beside = figure.seconds - figure.removals_seconds
    print(f"{figure.total} worktrees, {figure.due} due, {figure.removed} removed")
    print(f"  directories opened   {figure.opened:8}  (at most {OF_EACH_DUE} * {figure.due} + {CONSTANT})")
    print(f"  removals             {figure.removals_seconds:8.2f} s")
    print(f"  all else             {beside:8.2f} s  (at most {SECONDS_BESIDE_REMOVALS:g} s)")
    print(f"  git worktree list    {figure.list_ms / 1000:8.2f} s, once")
    return figure.holds
