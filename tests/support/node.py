"""A node's real worktrees and their rows, as old as a test needs: real git, a real database."""

import os
import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from bot.care.asked import PruneReport, Pruning
from bot.care.prune import prune
from bot.care.retention_rules import RetentionPolicy
from bot.model import DetachedHead, IssueBranch, Repository, Start, WorktreeRow
from bot.node.context import NodeContext
from bot.node.launching import Launcher
from bot.redaction import Redactor
from bot.rules import Rules
from bot.store import conversations
from bot.store.database import Connection, database, read
from bot.tree import Metadata
from tests.support.git_repositories import SEARCH_PATH, GitRepositories, git
from tests.support.node_id import record
from tests.support.retention import policy_for

NODE = "here"
HELLO = Repository("github.com", 1, "octo", "hello", "main")
LONG_AGO_DAYS = 365


@dataclass(slots=True)
class Node:
    """One node with one repository. `clock` does not move unless a test moves it."""

    git: GitRepositories
    db: Connection
    ctx: NodeContext
    now: list[datetime] = field(default_factory=list)

    def path(self, number: int) -> Path:
        return self.git.path.with_name(f"issue-{number}")

    async def add(self, number: int, *, days: float = LONG_AGO_DAYS, detached: bool = False) -> int:
        """Create a clean, published worktree of an issue, last used `days` ago; return its id."""
        path = self.path(number)
        sha = self.git.remote_tip("main")
        start: Start = DetachedHead(sha, "refs/heads/main") if detached else IssueBranch(number)
        await self.git.created(start, path)
        in_row = DetachedHead(sha, f"refs/pull/{number}/head") if detached else start
        worktree = await conversations.reserve_worktree(
            self.db, HELLO, node=NODE, path=self.ctx.stored(path), owner=number, start=in_row
        )
        await self.db.execute(
            "update worktrees set state = 'ready', base_branch = 'main', branch = $2 where id = $1",
            *(worktree, None if detached else f"threadtree/issue-{number}"),
        )
        await self.talk(number, worktree)
        await self.age(worktree, days)
        return worktree

    def copies_of(self, number: int, others: Iterable[int]) -> None:
        """Copy the worktree, which is faster than git; without rows."""
        admin = self.git.clone.path / "worktrees" / self.path(number).name
        for other in others:
            path, copy = self.path(other), admin.with_name(self.path(other).name)
            shutil.copytree(self.path(number), path)
            shutil.copytree(admin, copy)
            (path / ".git").write_text(f"gitdir: {copy}\n")
            (copy / "gitdir").write_text(f"{path}/.git\n")

    async def talk(self, number: int, worktree: int | None) -> int:
        """Create an open thread in that worktree; return the conversation's id."""
        conversation, _ = await conversations.save_thread(self.db, HELLO, number, "issue", "A title", None)
        await conversations.use_worktree(self.db, conversation, worktree)
        return conversation

    async def age(self, worktree: int, days: float) -> None:
        """Make the row, metadata and all files `days` old."""
        at = self.ctx.clock() - timedelta(days=days)
        await self.db.execute("update worktrees set created_at = $2, updated_at = $2 where id = $1", worktree, at)
        row = await self.row(worktree)
        path = self.ctx.directory(row.path)
        await self.write_metadata(worktree)
        state = self.git.view(path).state
        set_times(path, at, state / "index", state / "HEAD")

    async def row(self, worktree: int) -> WorktreeRow:
        return read(WorktreeRow, await self.db.fetchrow("select * from worktree_rows where worktree_id = $1", worktree))

    async def write_metadata(self, worktree: int) -> None:
        row = await self.row(worktree)
        Metadata.of(row).write(self.ctx.directory(row.path))

    async def states(self) -> dict[int, str]:
        return {row["id"]: row["state"] for row in await self.db.fetch("select id, state from worktrees order by id")}

    def policy(self, **changes: Any) -> RetentionPolicy:
        days = {"detached_days": 30, "branch_days": 90, "orphan_days": 90, "rescue_days": 180}
        return policy_for(self.ctx.clock(), **{**days, **changes})

    async def sweep(self, **options: Any) -> PruneReport:
        policy = options.pop("policy", None) or self.policy()
        return await prune(self.ctx, lambda *_: policy, Pruning(**options))

    def move_clock(self, days: float) -> None:
        self.now[0] += timedelta(days=days)

    def listing(self) -> dict[str, tuple[Any, ...]]:
        """Return every path under DATA_DIR, with values that show any change of it."""
        found: dict[str, tuple[Any, ...]] = {}
        for folder, folders, names in os.walk(self.ctx.data_dir):
            for name in (*folders, *names):
                file = Path(folder, name)
                state = file.lstat()
                content = file.read_bytes() if file.is_file() and not file.is_symlink() else b""
                found[str(file)] = (state.st_mode, state.st_ino, state.st_mtime_ns, state.st_size, content)
        return found

    async def rows(self) -> dict[str, list[str]]:
        """Return all rows that a sweep could change."""
        tables = ("worktrees", "conversations", "sessions", "turns", "operations", "rescues", "orphans")
        return {
            table: [row[0] for row in await self.db.fetch(f"select t::text from {table} t order by 1")]  # noqa: S608 -- names above
            for table in tables
        }


@asynccontextmanager
async def prepared_node(root: Path, database_url: str, sandbox: Literal["off", "bwrap"] = "off") -> AsyncIterator[Node]:
    """Yield a node whose repository octo/hello has one commit."""
    world = await GitRepositories.make(root, sandbox).with_clone()
    # The bot would clone from here.
    (root / "octo").mkdir()
    (root / "octo" / "hello.git").symlink_to(world.remote)
    now = [datetime.now(UTC)]
    async with database(database_url, size=8) as pool, pool.acquire() as db:
        await db.execute("insert into nodes (id) values ($1)", NODE)
        await conversations.save_codebase(db, HELLO)
        ctx = NodeContext(
            pool=pool,
            git=world.clone.git,
            node=NODE,
            data_dir=root / "data",
            server_url=root.as_uri(),
            clock=lambda: now[0],
            github=None,
            redactor=Redactor(),
            launcher=Launcher("host", SEARCH_PATH, "C.UTF-8"),
            rules=Rules(agents=("custom",), agent="custom"),
        )
        record(ctx.data_dir, NODE)
        yield Node(world, db, ctx, now)


def set_times(top: Path, at: datetime, *more: Path) -> None:
    """Set the times of `top` and everything below."""
    for file in (*more, *top.rglob("*"), top):
        os.utime(file, (at.timestamp(), at.timestamp()), follow_symlinks=False)


def commit_in(path: Path, name: str, content: str = "work\n") -> str:
    """Create a commit that is in this worktree only."""
    (path / name).write_text(content)
    git(path, "add", "-A")
    git(path, "commit", "-q", "-m", f"change {name}")
    return git(path, "rev-parse", "HEAD")
