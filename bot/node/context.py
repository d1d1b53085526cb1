"""The context of work on this node's worktrees, for a turn, a timer or an operator."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Self

from bot.github.client import GitHub
from bot.github.transport import Sleep
from bot.model import DetachedHead, WorktreeRow
from bot.node.launching import Launcher
from bot.redaction import Redactor
from bot.rules import Rules
from bot.store.database import Pool
from bot.tree import Clone, Git, OpenTree, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """A node's clones, worktrees and rows. Without `github` it is unknown what was merged.

    `redactor` removes secrets from what is written to GitHub.
    """

    pool: Pool
    git: Git
    node: str
    """The id of its DATA_DIR."""
    data_dir: Path
    server_url: str
    public_url: str | None = None
    """Where people reach the dashboard."""
    clock: Callable[[], datetime]
    github: GitHub | None
    redactor: Redactor
    launcher: Launcher
    rules: Rules
    """The operator's; those of the repository, while a turn runs."""
    sleep: Sleep = asyncio.sleep
    dsn: str = ""
    """The address of the database, for the job engine, which opens connections of its own."""
    disk_reserve_bytes: int = 0
    """The disk space that new worktrees must leave free."""
    setup_seconds: float = 600.0
    """How long `.threadtree/setup` may take, where it runs (`rules.setup`)."""
    check_seconds: float = 600.0
    """How long `.threadtree/check` may take, where it runs (`rules.check`)."""
    purge_on_success: bool = False
    opened: Clone | None = None
    """The clone whose objects one turn reads with one process."""

    def with_rules(self, rules: Rules) -> Self:
        """Return the context for work on a repository with these rules."""
        outside = replace(self.launcher.outside, further=rules.network)
        return replace(self, rules=rules, launcher=replace(self.launcher, outside=outside))

    def clone(self, folder: str) -> Clone:
        """Return the clone of a codebase by the folder in its row."""
        clone = Clone.at(self.data_dir, folder, self.git)
        return self.opened if self.opened == clone else clone

    def tree(self, worktree: WorktreeRow) -> Tree:
        """Return the tree of a worktree by its row."""
        return Tree(self.clone(worktree.folder), self.directory(worktree.path))

    async def fill_submodules(self, tree: OpenTree, worktree: WorktreeRow, commit: str) -> dict[str, str]:
        """Fill the submodules of HEAD, which is `commit`; return why others stay empty, by path. A fork's may be those
        that anybody can read. Raises GitError, OSError.
        """
        known = worktree.repository
        default = None if isinstance(worktree.start, DetachedHead) else known.default_branch
        return await tree.fill_submodules(commit, self.server_url, known.full_name, default)

    def directory(self, path: str) -> Path:
        """Return the directory of a row's path: relative to DATA_DIR."""
        return self.data_dir / path

    def stored(self, path: Path) -> str:
        """Return the path as rows hold it: relative to DATA_DIR, so that DATA_DIR can be moved."""
        return str(path.relative_to(self.data_dir) if path.is_relative_to(self.data_dir) else path)

    def home(self, conversation_id: int) -> Path:
        """Return the HOME of a conversation's agent, which is made if there is none."""
        home = self.data_dir / "homes" / str(conversation_id)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        return home

    @property
    def workers(self) -> Path:
        """Return the directory of this node's process locks (see `bot.locks`)."""
        return self.data_dir / "workers"

    @property
    def attachments(self) -> Path:
        """Return the directory of what is attached to threads: a folder for each turn, while its agent runs."""
        return self.data_dir / "attachments"

    @property
    def checks(self) -> Path:
        """Return the directory of what checks need and keep: folders of each repository."""
        return self.data_dir / "checks"
