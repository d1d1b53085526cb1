"""`<name>.json` beside a worktree: whose it is, and how it was last used."""

import os
import tempfile
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import orjson
from pydantic import AwareDatetime, NonNegativeInt, StringConstraints, TypeAdapter, ValidationError

from bot.model import WorktreeRow

_Text = Annotated[str, StringConstraints(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """One worktree. Times are aware; `conversations` are issue and PR numbers, `branch` is None when detached."""

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


_FILE = TypeAdapter(Metadata)


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no file."""


@dataclass(frozen=True, slots=True)
class Corrupt:
    """The file is unusable."""

    why: str


def metadata_path(worktree: Path) -> Path:
    """Return the path of the metadata of this worktree."""
    return worktree.with_name(f"{worktree.name}.json")


def metadata_of(worktree: WorktreeRow) -> Metadata:
    """Return the metadata of a worktree as its row tells it; how often it was used is lost."""
    return Metadata(
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
    )


def record_use(path: Path, worktree: WorktreeRow, branch: str | None, base_branch: str | None, now: datetime) -> None:
    """Write the metadata of a worktree that is used now, on this branch; keep how often it was used. Raises OSError."""
    before = read(path)
    known = metadata_of(worktree)
    if isinstance(before, Metadata):
        known = replace(
            known,
            created_at=before.created_at,
            execution_count=before.execution_count,
            last_error=before.last_error,
        )
    write(path, replace(known, branch=branch, base=base_branch or worktree.base_branch, updated_at=now))


def write(worktree: Path, metadata: Metadata) -> None:
    """Replace the file atomically: neither a reader nor a crash meets half of it. Raises OSError."""
    path = metadata_path(worktree)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(serialise(metadata))
            file.flush()
            os.fsync(file.fileno())
        Path(name).rename(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read(worktree: Path) -> Metadata | Absent | Corrupt:
    """Return the metadata of this worktree; an unreadable file is Corrupt."""
    try:
        content = metadata_path(worktree).read_bytes()
    except FileNotFoundError:
        return Absent()
    except OSError as error:
        return Corrupt(f"unreadable: {error.strerror}")
    return parse(content)


def delete(worktree: Path) -> None:
    """Remove the file if there is one. Raises OSError."""
    metadata_path(worktree).unlink(missing_ok=True)


def serialise(metadata: Metadata) -> bytes:
    """Return JSON for people and programs, times in ISO-8601 UTC."""
    times = {name: getattr(metadata, name).astimezone(UTC).isoformat() for name in ("created_at", "updated_at")}
    return orjson.dumps(asdict(metadata) | times, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def parse(content: bytes) -> Metadata | Corrupt:
    """Parse a file's content. Unknown keys are ignored: a newer version may have written them."""
    try:
        return _FILE.validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return Corrupt(f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": "))
