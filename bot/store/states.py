"""Values of rows that wording needs, too. No I/O."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from bot.model import WorktreeState

EndReason = Literal[
    "reset-requested",
    "conversation-closed",
    "worktree-removed",
    "worktree-reset",
    "worktree-missing",
    "agent-lost",
    "agent-changed",
    "node-lost",
]


@dataclass(frozen=True, slots=True)
class WorktreeOfThread:
    """The live worktree of a thread; `others` are the numbers of the other threads that use it."""

    id: int
    state: WorktreeState
    branch: str | None
    detached: bool
    others: tuple[int, ...]
    active_at: datetime
