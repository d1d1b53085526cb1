"""How a run can end, and what it changed: what the thread is told. Values only."""

from dataclasses import dataclass, field
from typing import Literal

from bot.worktrees.push import DiffStat


@dataclass(frozen=True, slots=True)
class PublishedChange:
    """What a done turn left on GitHub: `before` and `after` of the branch it pushed, both None if it pushed nothing."""

    branch: str | None = None
    before: str | None = None
    after: str | None = None
    commits: int = 0
    stat: DiffStat | None = None
    patch: str = ""


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The end of a run. `reason` is one sentence for people and None only for `done`; `last_words`: of the agent's
    error output, where it failed.
    """

    state: Literal["done", "failed", "stopped", "timed-out", "refused"]
    reason: str | None = None
    answer: str = ""
    change: PublishedChange = field(default_factory=PublishedChange)
    last_words: str = ""
