"""The variables of a repository, for its set-up script and its agents: one file each, on this node, for its user alone.

They belong to the repository's id: a name that somebody else takes over inherits nothing.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bot import logs
from bot.files import replace_file
from bot.model import DetachedHead, Repository, WorktreeRow
from bot.redaction import Redactor

FOLDER = "variables"
MAX_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True)
class SetVariable:
    """A variable without its value."""

    name: str
    set_at: datetime


def set_variable(data_dir: Path, repository: Repository, name: str, value: str) -> None:
    """Keep the value in a file of mode 0600; a worker uses it from its next turn on. Raises OSError."""
    folder = _folder(data_dir, repository)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(folder / name, value.encode())


def unset_variable(data_dir: Path, repository: Repository, name: str) -> bool:
    """Delete the variable; return whether there was one. Raises OSError."""
    try:
        (_folder(data_dir, repository) / name).unlink()
    except FileNotFoundError:
        return False
    return True


def set_variables(data_dir: Path, repository: Repository) -> list[SetVariable]:
    """Return what is set, by name. Raises OSError."""
    files = _files(_folder(data_dir, repository))
    return [SetVariable(file.name, datetime.fromtimestamp(file.stat().st_mtime, UTC)) for file in files]


def variables_in(data_dir: Path, worktree: WorktreeRow) -> dict[str, str]:
    """Return what programs in this worktree may have: nothing at the head of a fork. Raises OSError.

    A protected head branch counts as a fork: its worktree is made the same way.
    """
    is_foreign = isinstance(worktree.start, DetachedHead)
    return {} if is_foreign else values_of(data_dir, worktree.repository)


def values_of(data_dir: Path, repository: Repository) -> dict[str, str]:
    """Return all variables of the repository as they are set now. Raises OSError."""
    return dict(_values_in(_folder(data_dir, repository)))


def know_variables(data_dir: Path, repository: Repository, redactor: Redactor) -> dict[str, str]:
    """Return all variables of the repository as they are set now, which `redactor` and the log know from then on.

    Raises OSError.
    """
    found = values_of(data_dir, repository)
    redactor.know(found.values())
    logs.hide(found.values())
    return found


def redactor_of(data_dir: Path, parent: Redactor, repository: Repository) -> Redactor:
    """Return what knows the repository's variables as they are set now, and what its parent knows. Raises OSError."""
    redactor = Redactor(parent=parent)
    know_variables(data_dir, repository, redactor)
    return redactor


def secrets_in(data_dir: Path) -> Iterator[str]:
    """Yield the values of all repositories, for redaction. Raises OSError."""
    for folder in sorted((data_dir / FOLDER).glob("*/*/")):
        yield from (value for _, value in _values_in(folder))


def _values_in(folder: Path) -> Iterator[tuple[str, str]]:
    for file in _files(folder):
        with suppress(FileNotFoundError):  # it was unset meanwhile
            yield file.name, file.read_bytes().decode()


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*") if not file.name.startswith("."))


def _folder(data_dir: Path, repository: Repository) -> Path:
    return data_dir / FOLDER / repository.platform / str(repository.id)
