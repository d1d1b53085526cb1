"""`<name>.json` beside a worktree: whose it is, and how it was last used."""

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import AwareDatetime, NonNegativeInt, StringConstraints, TypeAdapter, ValidationError

from bot.files import replace_file
from bot.model import WorktreeRow

_Text = Annotated[str, StringConstraints(min_length=1)]
Unusable: TypeAlias = Literal["missing", "corrupt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """One worktree. Times are aware; `conversations` are issue and PR numbers, `branch` is None when detached.

    The file is found by the path of the worktree.
    """

    id: _Text
    platform: _Text
    repository_id: NonNegativeInt
    full_name: _Text
    conversations: tuple[NonNegativeInt, ...]
    branch: _Text | None
    base: _Text | None
    node: _Text
    created_at: AwareDatetime
    updated_at: AwareDatetime
    execution_count: NonNegativeInt = 0
    last_error: str | None = None

    @classmethod
    def of(cls, worktree: WorktreeRow, execution_count: int = 0, last_error: str | None = None) -> Self:
        """Return the metadata of a worktree as its row tells it, and its turns how often it was used."""
        return cls(
            id=str(worktree.id),
            platform=worktree.repository.platform,
            repository_id=worktree.repository.id,
            full_name=worktree.repository.full_name,
            conversations=worktree.conversations,
            branch=worktree.branch,
            base=worktree.base_branch,
            node=worktree.node,
            created_at=worktree.created_at,
            updated_at=worktree.updated_at,
            execution_count=execution_count,
            last_error=last_error,
        )

    @staticmethod
    def file(worktree: Path) -> Path:
        """Return the path of the metadata of this worktree."""
        return worktree.with_name(f"{worktree.name}.json")

    @classmethod
    def read(cls, worktree: Path) -> "Metadata | Unusable":
        """Return the metadata of this worktree. Unknown keys are ignored: a newer version may have written them."""
        try:
            return _FILE.validate_json(cls.file(worktree).read_bytes(), strict=True)
        except FileNotFoundError:
            return "missing"
        except (OSError, ValidationError):
            return "corrupt"

    def write(self, worktree: Path) -> None:
        """Replace the file atomically: neither a reader nor a crash meets half of it. Raises OSError."""
        path = self.file(worktree)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, _FILE.dump_json(self, indent=2) + b"\n")

    @classmethod
    def record_use(
        cls, worktree: Path, row: WorktreeRow, branch: str | None, base_branch: str | None, now: datetime
    ) -> None:
        """Write the metadata of a worktree that is used now, on this branch; keep how often it was used. Raises
        OSError.
        """
        before, known = cls.read(worktree), cls.of(row)
        if isinstance(before, Metadata):
            known = replace(cls.of(row, before.execution_count, before.last_error), created_at=before.created_at)
        replace(known, branch=branch, base=base_branch or row.base_branch, updated_at=now).write(worktree)

    @classmethod
    def delete(cls, worktree: Path) -> None:
        """Remove the file if there is one. Raises OSError."""
        cls.file(worktree).unlink(missing_ok=True)


_FILE = TypeAdapter(Metadata)
