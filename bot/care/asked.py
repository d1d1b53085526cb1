"""What an operator asks of a whole node, and what that reports.

Bodies of the API, forms of the pages and options of commands are these fields, in these words.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from rich.filesize import decimal

from bot.thread.formatting import format_count

REPOSITORY: Final = r"[A-Za-z0-9_-]{1,100}/[A-Za-z0-9._-]{1,100}"
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

# Whole ids of Postgres' bigint have up to 19 digits; ours stay far below.
Id = Annotated[int, Field(ge=0, lt=10**18)]
Repository = Annotated[
    Annotated[str, Field(pattern=f"^{REPOSITORY}$")] | None,
    Field(title="Only those of this repository", description="a repository, as owner/name"),
]
Age = Annotated[
    Annotated[str, Field(pattern=f"^[0-9]{{1,5}}[{''.join(_UNITS)}]$")] | None,
    Field(
        title="Only what was not used for this long, whatever the settings say",
        description="24h or 7d, say: a number and s, m, h, d or w",
    ),
]
DryRun = Annotated[bool, Field(title="Only show what would be removed", description="true or false")]


class Asked(BaseModel):
    """What a call asks: the names in its path, and either the parameters of its query or the fields of its body."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SessionPruning(Asked):
    """The ended sessions that are to be deleted."""

    older_than: Age = None
    repo: Repository = None
    dry_run: DryRun = False


class Pruning(Asked):
    """The worktrees that are to be removed."""

    older_than: Age = None
    repo: Repository = None
    kind: Annotated[
        Literal["branch", "detached", "orphan"] | None,
        Field(title="Only those of this kind", description="branch, detached or orphan"),
    ] = None
    dry_run: DryRun = False
    force: Annotated[
        bool, Field(title="Go on even if more than half would be removed", description="true or false")
    ] = False

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole sweep, not one of some worktrees."""
        return self.repo is None and self.kind is None

    def has(self, repository: str, kind: str) -> bool:
        """Return whether a worktree is among them."""
        return (self.repo or repository).lower() == repository.lower() and self.kind in (None, kind)


class Repairing(Asked):
    """The worktrees that are to be repaired."""

    worktree: Annotated[Id | None, Field(title="Only this worktree", description="its id")] = None
    repo: Repository = None


def age_of(text: str | None) -> timedelta | None:
    """Return the age that an `Age` says."""
    return None if text is None else timedelta(**{_UNITS[text[-1]]: int(text[:-1])})


@dataclass(frozen=True, slots=True)
class PruneLine:
    """One worktree of a report. `bytes` are freed, or would be."""

    id: int
    path: str
    why: str
    bytes: int = 0


@dataclass(slots=True)
class PruneReport:
    """The result of a prune; with `dry_run`, nothing was removed. `aborted`: why it stopped before any removal."""

    dry_run: bool
    deleted: list[PruneLine] = field(default_factory=list)
    skipped: list[PruneLine] = field(default_factory=list)
    errors: list[PruneLine] = field(default_factory=list)
    bytes_reclaimed: int = 0
    aborted: str | None = None

    @property
    def words(self) -> str:
        if self.aborted is not None:
            return f"{self.aborted} Repeat it with force to go on."
        would_be = "would be " if self.dry_run else ""
        return (
            f"{len(self.deleted)} {would_be}removed, {len(self.skipped)} kept, {len(self.errors)} failed; "
            f"{decimal(self.bytes_reclaimed)} {would_be}freed."
        )

    @property
    def lines(self) -> list[tuple[str, PruneLine]]:
        """The lines, each with what became of its worktree."""
        verdict = "would remove" if self.dry_run else "removed"
        parts = ((verdict, self.deleted), ("kept", self.skipped), ("failed", self.errors))
        return [(word, line) for word, part in parts for line in part]


@dataclass(frozen=True, slots=True)
class Repaired:
    """A place that was repaired, and how."""

    path: str
    action: str


def words_of_repair(done: list[Repaired]) -> str:
    return f"Repaired: {format_count(len(done), 'place')}." if done else "Nothing to repair."
