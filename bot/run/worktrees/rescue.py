"""A rescue: the whole working state of a worktree as one commit in the clone, before anything removes or resets it."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from bot.run.worktrees.clone import CloneLock


@dataclass(frozen=True, slots=True)
class Rescued:
    """`sha` under `ref` holds everything: `files` that were not committed, `commits` that nobody had pushed."""

    ref: str
    sha: str
    files: int
    commits: int


@dataclass(frozen=True, slots=True)
class NothingToRescue:
    """Clean, and GitHub has every commit."""


@dataclass(frozen=True, slots=True)
class KeepWhole:
    """A commit cannot hold it (a nested repository, a dirty submodule, the clone is gone): keep the directory."""

    why: str


@dataclass(frozen=True, slots=True)
class Label:
    """What a rescue commit says of itself, so that it explains itself without the database."""

    worktree_id: int
    branch: str | None
    conversations: tuple[int, ...]
    at: datetime


async def rescue(lock: CloneLock, path: Path, label: Label) -> Rescued | NothingToRescue | KeepWhole:
    """Keeps what exists only here as a ref of the clone; the worktree stays as it is. Raises GitError, OSError."""
    raise NotImplementedError(lock, path, label)
