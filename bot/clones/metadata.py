"""`<name>.json` beside a worktree: whose it is, and how it was last used."""

import contextlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from bot.model import WorktreeRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """One worktree. Times are aware; `conversations` are issue and PR numbers, `branch` is None when detached."""

    id: str
    platform: str
    repository_id: int
    full_name: str
    conversations: tuple[int, ...]
    branch: str | None
    base: str | None
    node: str
    created_at: datetime
    updated_at: datetime
    execution_count: int = 0
    last_error: str | None = None


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


def record_use(worktree: WorktreeRow, branch: str | None, base_branch: str | None, now: datetime) -> None:
    """Write the metadata of a worktree that is used now, on this branch; keep how often it was used. Raises OSError."""
    path = Path(worktree.path)
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
    _sync_directory(path.parent)


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
        values = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        return Corrupt(f"not JSON: {error}")
    if not isinstance(values, dict):
        return Corrupt("not a JSON object")
    wrong = next((name for name, fits in _CHECKS.items() if not fits(values.get(name))), None)
    if wrong is not None:
        return Corrupt(f"{wrong} is missing or of the wrong kind")
    known = {field.name: values[field.name] for field in fields(Metadata)}
    times = {name: datetime.fromisoformat(values[name]) for name in ("created_at", "updated_at")}
    return Metadata(**known | times | {"conversations": tuple(values["conversations"])})


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_time(value: Any) -> bool:
    with contextlib.suppress(TypeError, ValueError):
        return datetime.fromisoformat(value).tzinfo is not None
    return False


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "id": _is_text,
    "platform": _is_text,
    "repository_id": _is_count,
    "full_name": _is_text,
    "conversations": lambda value: isinstance(value, list) and all(map(_is_count, value)),
    "branch": lambda value: value is None or _is_text(value),
    "base": lambda value: value is None or _is_text(value),
    "node": _is_text,
    "created_at": _is_time,
    "updated_at": _is_time,
    "execution_count": _is_count,
    "last_error": lambda value: value is None or isinstance(value, str),
}


def _sync_directory(directory: Path) -> None:
    """Without this the rename itself may not survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
