"""Two folders of DATA_DIR: `trash` for what is to be deleted at once, `kept` for directories that no commit can hold.

Everything moves there by rename, which is as fast for a large tree as for a small one.
"""

import asyncio
import hashlib
import os
import re
import secrets
import stat
import sys
from datetime import UTC, datetime
from pathlib import Path

import structlog

from bot.files import real_path
from bot.sandbox.disk import used_bytes
from bot.sandbox.process import OutputTail, start

# Beside a kept directory: git's state of it (index, HEAD, submodules' commits).
GIT_STATE = ".git"
_MOUNTS = Path("/proc/self/mountinfo")
# In characters, of which one can be four bytes, and a file name has 255.
_NAME_LENGTH = 40
_TIME = "%Y%m%dT%H%M%S.%fZ"
_KEPT_NAME = re.compile(r".+\.(\d{8}T\d{6}\.\d{6}Z)\.[0-9a-f]{16}", re.DOTALL)
_SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
_MAX_ERROR_BYTES = 2000

_log = structlog.get_logger()


def trash_folder(data_dir: Path) -> Path:
    """Return the folder of directories that will be deleted."""
    return data_dir / "trash"


def kept_folder(data_dir: Path) -> Path:
    """Return the folder of directories that are kept whole."""
    return data_dir / "kept"


def kept_name(path: Path, at: datetime) -> str:
    """Return `<name>.<time in UTC>.<hex>`: always the same for one directory and one `at`, the time of the decision."""
    digest = hashlib.sha256(bytes(real_path(path))).hexdigest()[:16]
    return f"{path.name[:_NAME_LENGTH]}.{at.astimezone(UTC):{_TIME}}.{digest}"


def kept_since(name: str) -> datetime | None:
    """Return the time in a kept directory's name; None if it is no such name."""
    matched = _KEPT_NAME.fullmatch(name)
    try:
        return datetime.strptime(matched[1], _TIME).replace(tzinfo=UTC) if matched else None
    except ValueError:
        return None


def keep_whole(data_dir: Path, path: Path, at: datetime) -> Path:
    """Move `path`, of any kind, to `kept`; return its place there. Raises OSError."""
    place = kept_folder(data_dir) / kept_name(path, at)
    move(path, place)
    return place


def place_for(data_dir: Path, path: Path) -> Path:
    """Return a free place in the trash for `path`."""
    return trash_folder(data_dir) / f"{path.name[:_NAME_LENGTH]}.{secrets.token_hex(8)}"


def move_to_trash(data_dir: Path, path: Path) -> Path | None:
    """Move `path`, of any kind, to the trash; return its place there, None if it is gone. Raises OSError."""
    place = place_for(data_dir, path)
    try:
        move(path, place)
    except FileNotFoundError:
        return None
    return place


def move(path: Path, place: Path) -> None:
    """Rename `path`, also a directory without permissions, to `place`, which must be free.

    Raises OSError: busy, a mount below, another file system.
    """
    state = path.lstat()
    if os.path.lexists(place):
        raise FileExistsError(f"{place} is there already")
    if (mounted := mount_below(path)) is not None:
        raise OSError(f"{mounted} is mounted there")
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        path.rename(place)
    except PermissionError:
        # To move a directory the kernel writes its `..`, which needs permission.
        if not stat.S_ISDIR(state.st_mode):
            raise
        path.chmod(stat.S_IRWXU)
        path.rename(place)


def mount_below(path: Path) -> Path | None:
    """Return a mount point at or below `path`: what is in it is not ours to delete."""
    inside = real_path(path)
    try:
        lines = _MOUNTS.read_bytes().splitlines()
    except OSError:
        return None
    # https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html: field 5, with white space in octal.
    found = (re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), line.split(b" ")[4]) for line in lines)
    return next((mounted for name in found if (mounted := Path(os.fsdecode(name))).is_relative_to(inside)), None)


def size_of(path: Path) -> int:
    """Return the bytes a tree takes on disk. Links are not followed; what cannot be read counts as nothing."""
    return used_bytes((path,), sys.maxsize)


async def delete(path: Path) -> int:
    """Delete what lies in the trash, also without permissions; return the bytes freed. Links are not followed.

    Log and keep what cannot be deleted. A cancellation keeps the rest too.
    """
    if not os.path.lexists(path):  # noqa: ASYNC240
        return 0
    if (mounted := mount_below(path)) is not None:
        _log.warning("trash-not-deleted", path=str(path), error=f"{mounted} is mounted there")
        return 0
    size = await asyncio.to_thread(size_of, path)
    remove = ("rm", "-rf", "--one-file-system", "--", str(path))
    problem = await _run(*remove)
    if problem is not None:
        # Directories only: a file may have another name elsewhere, and deleting it needs no permission of its own.
        closed = ("find", str(path), "-xdev", "-type", "d", "!", "-perm", "-700")
        await _run(*closed, "-execdir", "chmod", "u+rwx", "--", "{}", ";")
        problem = await _run(*remove)
    if problem is None:
        return size
    _log.warning("trash-not-deleted", path=str(path), error=problem)
    return max(0, size - await asyncio.to_thread(size_of, path))


async def empty_trash(data_dir: Path) -> int:
    """Delete everything in the trash; return the bytes freed."""
    folder = trash_folder(data_dir)
    return sum([await delete(folder / name) for name in names_in(folder)])


def kept_before(data_dir: Path, older_than: datetime) -> list[Path]:
    """Return what was kept whole before `older_than`, and git's state of it. Raises OSError."""
    folder = kept_folder(data_dir)
    dated = {name: kept_since(name.removesuffix(GIT_STATE)) for name in names_in(folder)}
    return [folder / name for name, since in dated.items() if since is not None and since < older_than]


async def _run(*argv: str) -> str | None:
    """Run a program to its end; return the end of its stderr if it failed."""
    environment = {"PATH": _SEARCH_PATH, "LC_ALL": "C.UTF-8"}
    process = await start(argv, environment, Path("/"), stdout=asyncio.subprocess.DEVNULL)
    try:
        errors = OutputTail(process.stderr, _MAX_ERROR_BYTES)
        await process.wait()
        await errors.finish()
    finally:
        await asyncio.shield(process.end())
    return (errors.data.decode(errors="replace").strip() or f"exit status {process.status}") if process.status else None


def names_in(folder: Path) -> list[str]:
    """Return what is in a folder, nothing where that is not there."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except FileNotFoundError:
        return []
