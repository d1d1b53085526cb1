"""A backup of a node while it runs, and its restore on an empty machine.

The database comes first, as it is at one moment, then the files, each clone with its worktrees while it is locked. So
the files are never older than the rows, as after a kill -9: what they have more is found as it is then.
"""

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterable
from pathlib import Path

import orjson

from bot.care.backup_rows import Rows, is_empty, load_rows, require_known, save_rows
from bot.node.identity import FILE, known_id
from bot.sandbox.view import private_folder
from bot.tree import Clone, Git, open_clone

_WITHOUT_CLONE = ("worktrees/*/*/*", "private/*", "kept/*", "homes/*", "restoring/*", FILE)
_COMPLETE = "backup.json"
_ROWS, _FILES = "database", "files"
# Its status where a file changed or went while it was read: an agent is at work there.
_CHANGED_STATUS = 1


class BackupError(Exception):
    """Nothing was changed, or what was made is incomplete; the message names the next step."""


async def back_up(dsn: str, data_dir: Path, to: Path) -> list[str]:
    """Save database and files into an empty folder; return what tar says of files that cannot be read.

    Raises BackupError, OSError, and what a database raises.
    """
    data_dir, to = data_dir.resolve(), to.resolve()  # noqa: ASYNC240
    if to.is_relative_to(data_dir):
        raise BackupError(f"{to} is in DATA_DIR: name a folder elsewhere, best on another disk.")
    to.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(to.iterdir()):
        raise BackupError(f"{to} is not empty: name a new folder for each backup.")
    for name in (_ROWS, _FILES):
        (to / name).mkdir(mode=0o700)
    rows = await save_rows(dsn, to / _ROWS)
    said, saved = list[str](), set[Path]()
    for number, path in enumerate(sorted(data_dir.glob("repos/*/*.git"))):
        async with open_clone(Clone(path, data_dir, Git())):
            places = await asyncio.to_thread(_of_clone, data_dir, path)
            said += await _archive(data_dir, to / _FILES / f"{number:06}.tar", places)
        saved |= set(places)
    said += await _archive(data_dir, to / _FILES / "others.tar", _others(data_dir, saved))
    (to / _COMPLETE).write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
    return said


def _of_clone(data_dir: Path, clone: Path) -> list[Path]:
    """Return a clone's places in the order in which they are saved: first what refers to objects, then these.

    An agent writes an object before the ref that names it.
    """
    worktrees = sorted(data_dir.glob(f"worktrees/{clone.parent.name}/{clone.stem}/*"))
    private = [folder for one in worktrees if (folder := private_folder(data_dir, one)).is_dir()]
    parts = [part for folder in private for part in sorted(folder.iterdir(), key=lambda part: part.name == "common")]
    return [*worktrees, *parts, clone]


def _others(data_dir: Path, saved: set[Path]) -> list[Path]:
    """Return the places that no clone has."""
    private = {place.parent for place in saved}
    return [place for one in _WITHOUT_CLONE for place in sorted(data_dir.glob(one)) if place not in saved | private]


async def _archive(data_dir: Path, archive: Path, places: Iterable[Path]) -> list[str]:
    """Write a tar archive, in which links stay links; return what could not be read. Raises BackupError."""
    names = b"".join(os.fsencode(place.relative_to(data_dir)) + b"\0" for place in places)
    options = ("--create", "--ignore-failed-read", "--verbatim-files-from", "--null", "--files-from=-")
    return await _tar(data_dir, archive, *options, given=names)


async def _tar(directory: Path, archive: Path, *options: str, given: bytes = b"") -> list[str]:
    argv = ("tar", f"--file={archive}", f"--directory={directory}", "--numeric-owner", *options)
    process = await asyncio.create_subprocess_exec(*argv, stdin=PIPE, stdout=DEVNULL, stderr=PIPE)
    said = (await process.communicate(given))[1].decode(errors="replace").splitlines()
    if process.returncode not in (0, _CHANGED_STATUS):
        raise BackupError(f"{archive} is not complete: {said[-1] if said else 'tar failed'}")
    return said


async def restore(dsn: str, data_dir: Path, backup: Path) -> None:
    """Bring a backup to an empty machine. Raises BackupError, MigrationError, OSError, and what a database raises."""
    rows: Rows = orjson.loads(await asyncio.to_thread((backup / _COMPLETE).read_bytes))
    await require_known(rows)
    if not await is_empty(dsn):
        raise BackupError("The database is not empty: set DATABASE_URL to an empty one.")
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)  # noqa: ASYNC240
    for archive in sorted((backup / _FILES).glob("*.tar")):
        await _tar(data_dir, archive, "--extract", "--preserve-permissions")
    await load_rows(dsn, backup / _ROWS, rows, known_id(data_dir))


def require_restorable(data_dir: Path, backup: Path) -> None:
    """Raise BackupError unless the backup is complete and DATA_DIR is empty."""
    if not (backup / _COMPLETE).is_file():
        raise BackupError(f"{backup} is no complete backup: {_COMPLETE} is missing, which is written at the end.")
    if data_dir.is_dir() and (there := sorted(one.name for one in data_dir.iterdir())):
        raise BackupError(f"{data_dir} is not empty (it has {there[0]}): set DATA_DIR to an empty folder.")
