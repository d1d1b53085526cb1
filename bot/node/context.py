"""What work on this node's worktrees takes, whoever asks for it: a turn, a timer, or an operator."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from bot.clones.clone import Clone, clone_at
from bot.git.runner import Git
from bot.github.client import GitHub
from bot.store.database import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """A node's clones and worktrees, and the rows they belong to. Without `github` what is merged there is unknown."""

    pool: Pool
    git: Git
    node: str
    data_dir: Path
    server_url: str
    clock: Callable[[], datetime]
    github: GitHub | None

    def clone(self, folder: str) -> Clone:
        """The clone of a codebase, by the folder its row names."""
        owner, _, name = folder.partition("/")
        return clone_at(self.data_dir, owner, name, self.git)

    @property
    def workers(self) -> Path:
        """Where the process locks of this node lie (see `liveness`)."""
        return self.data_dir / "workers"
