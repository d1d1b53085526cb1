"""Two folders of DATA_DIR: `trash` holds bytes to be deleted at once, `kept` directories that no commit can hold.

Everything gets there by rename, which takes no longer for a large tree than for a small one.
"""

import hashlib
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import structlog

from bot.clones.linked import real
from bot.sandbox.disk import used_bytes

# Beside a kept directory: what git knew of it (index, HEAD, submodules' commits).
GIT_STATE = ".git"
_BLOCK_BYTES = 512  # what st_blocks counts, https://man7.org/linux/man-pages/man3/stat.3type.html
_MOUNTS = Path("/proc/self/mountinfo")
# In characters, of which one can be four bytes, and a file name has 255.
_NAME_LENGTH = 40
_TIME = "%Y%m%dT%H%M%S.%fZ"
_KEPT_NAME = re.compile(r".+\.(\d{8}T\d{6}\.\d{6}Z)\.[0-9a-f]{16}", re.DOTALL)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Expired:
    """What `expire_kept` deleted: the names it had in `kept`, and the bytes that freed."""

    names: tuple[str, ...]
    bytes_freed: int


def trash_folder(data_dir: Path) -> Path:
    """Where what is to be deleted lies."""
    return data_dir / "trash"


def kept_folder(data_dir: Path) -> Path:
    """Where directories are kept whole."""
    return data_dir / "kept"


def kept_name(path: Path, at: datetime) -> str:
    """`<name>.<time in UTC>.<hex>`; the same whenever the same directory is kept for what was decided at `at`."""
    digest = hashlib.sha256(bytes(real(path))).hexdigest()[:16]
    return f"{path.name[:_NAME_LENGTH]}.{at.astimezone(UTC):{_TIME}}.{digest}"


def kept_since(name: str) -> datetime | None:
    """The time in a kept directory's name; None for a name that is none."""
    matched = _KEPT_NAME.fullmatch(name)
    try:
        return datetime.strptime(matched[1], _TIME).replace(tzinfo=UTC) if matched else None
    except ValueError:
        return None


def keep_whole(data_dir: Path, path: Path, at: datetime) -> Path:
    """Moves `path`, whatever it is, to where it is kept, and returns that place. Raises OSError."""
    place = kept_folder(data_dir) / kept_name(path, at)
    move(path, place)
    return place


def place_for(data_dir: Path, path: Path) -> Path:
    """A place in the trash for `path`, where nothing is yet."""
    return trash_folder(data_dir) / f"{path.name[:_NAME_LENGTH]}.{secrets.token_hex(8)}"


def move_to_trash(data_dir: Path, path: Path) -> Path | None:
    """Moves `path`, whatever it is, to the trash; returns where it is there, None if it was gone. Raises OSError."""
    place = place_for(data_dir, path)
    try:
        move(path, place)
    except FileNotFoundError:
        return None
    return place


def move(path: Path, place: Path) -> None:
    """Renames `path` to `place`, where nothing may be, also a directory without permissions.

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
        # A directory that changes its parent is written to: its `..` becomes another.
        if not stat.S_ISDIR(state.st_mode):
            raise
        path.chmod(stat.S_IRWXU)
        path.rename(place)


def mount_below(path: Path) -> Path | None:
    """A place at or below `path` where another file system is mounted: what is in it is not ours to delete."""
    inside = real(path)
    try:
        lines = _MOUNTS.read_bytes().splitlines()
    except OSError:
        return None
    # https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html: field 5, with white space in octal.
    found = (re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), line.split(b" ")[4]) for line in lines)
    return next((mounted for name in found if (mounted := Path(os.fsdecode(name))).is_relative_to(inside)), None)


def size_of(path: Path) -> int:
    """The bytes a tree takes on disk; links are not followed, what cannot be read counts nothing."""
    return used_bytes((path,), sys.maxsize)


def delete_bytes(path: Path, stopped: Callable[[], bool] = lambda: False) -> int:
    """Deletes what lies in the trash, also without permissions; returns the bytes freed. Links are not followed.

    What another task deletes at the same time is no error; what cannot be deleted is logged and remains. Ends early,
    with the rest still there, once `stopped` says so.
    """
    deletion = _Deletion(stopped)
    try:
        if (mounted := mount_below(path)) is not None:
            deletion.problem = f"{mounted} is mounted there"
        elif stat.S_ISDIR(path.lstat().st_mode):
            deletion.tree(path)
        else:
            deletion.file(path, path.lstat())
    except FileNotFoundError:
        pass
    except OSError as error:
        deletion.problem = str(error)
    if deletion.problem is not None:
        _log.warning("trash-not-deleted", path=str(path), error=deletion.problem)
    return deletion.bytes_freed


def empty_trash(
    data_dir: Path, progress: Callable[[int], None] = lambda _: None, stopped: Callable[[], bool] = lambda: False
) -> int:
    """Deletes everything in the trash; `progress` hears the bytes freed so far. Returns the bytes freed."""
    freed = 0
    for name in _names(trash_folder(data_dir)):
        if stopped():
            break
        freed += delete_bytes(trash_folder(data_dir) / name, stopped)
        progress(freed)
    return freed


def expire_kept(data_dir: Path, older_than: datetime) -> Expired:
    """Deletes what was kept whole before `older_than`, with what git knew of it. Raises OSError."""
    names: list[str] = []
    freed = 0
    for name in _names(kept_folder(data_dir)):
        since = kept_since(name.removesuffix(GIT_STATE))
        if since is None or since >= older_than:
            continue
        trashed = move_to_trash(data_dir, kept_folder(data_dir) / name)
        freed += delete_bytes(trashed) if trashed is not None else 0
        if kept_since(name) is not None:
            names.append(name)
    return Expired(tuple(names), freed)


class _Deletion:
    """Deletes one tree. Every directory is moved up to the top before it is emptied, so no depth is too deep."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped
        self._gone = 0
        self.bytes_freed = 0
        self.problem: str | None = None

    def tree(self, top: Path) -> None:
        """Deletes the directory `top`. Raises OSError."""
        above = os.open(top.parent, _DIRECTORY)
        try:
            within = _open(above, top.name)
            try:
                self._empty(within)
            finally:
                os.close(within)
            if self.problem is None and not self._stopped():
                os.rmdir(top.name, dir_fd=above)
        finally:
            os.close(above)

    def file(self, name: Path | str, known: os.stat_result, directory: int | None = None) -> None:
        """Deletes what is no directory. Raises OSError."""
        os.unlink(name, dir_fd=directory)
        if known.st_nlink == 1:
            self.bytes_freed += known.st_blocks * _BLOCK_BYTES

    def _empty(self, top: int) -> None:
        """Passes over the top until one finds nothing more that can go: each may bring directories up."""
        self._gone = 1
        while self._gone and not self._stopped():
            self._gone, self.problem = 0, None
            for entry in _entries(top):
                if self._stopped():
                    return
                is_directory = entry.is_dir(follow_symlinks=False)
                self._try(partial(self._directory if is_directory else self._file, top, entry))

    def _try(self, step: Callable[[], None]) -> None:
        """One step; what cannot be done now is done in a later pass, or never."""
        try:
            step()
        except FileNotFoundError:
            return  # another task was first
        except OSError as error:
            self.problem = str(error)
        else:
            self._gone += 1

    def _directory(self, top: int, found: os.DirEntry[str]) -> None:
        within = _open(top, found.name)
        try:
            freed = os.fstat(within).st_blocks * _BLOCK_BYTES
            for entry in _entries(within):
                is_directory = entry.is_dir(follow_symlinks=False)
                self._try(partial(self._move_up if is_directory else self._file, within, entry, top))
        finally:
            os.close(within)
        os.rmdir(found.name, dir_fd=top)
        self.bytes_freed += freed

    def _file(self, directory: int, entry: os.DirEntry[str], _: int | None = None) -> None:
        self.file(entry.name, entry.stat(follow_symlinks=False), directory)

    def _move_up(self, within: int, entry: os.DirEntry[str], top: int) -> None:
        os.close(_open(within, entry.name))  # gives it the permissions that moving takes
        os.rename(entry.name, secrets.token_hex(16), src_dir_fd=within, dst_dir_fd=top)


def _open(above: int, name: str) -> int:
    """The directory `name`, opened and with all its owner's permissions. Raises OSError."""
    try:
        opened = os.open(name, _DIRECTORY, dir_fd=above)
    except PermissionError:
        # An open that reads nothing needs no permission, and what it found cannot be exchanged for a link.
        found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        try:
            os.chmod(f"/proc/self/fd/{found}", stat.S_IRWXU)  # noqa: PTH101
            return os.open(".", _DIRECTORY, dir_fd=found)
        finally:
            os.close(found)
    if os.fstat(opened).st_mode & stat.S_IRWXU != stat.S_IRWXU:
        os.fchmod(opened, stat.S_IRWXU)
    return opened


def _entries(directory: int) -> list[os.DirEntry[str]]:
    with os.scandir(directory) as found:
        return list(found)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except FileNotFoundError:
        return []
