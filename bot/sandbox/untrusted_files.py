"""Read, list and remove files of a folder that an agent or another user may have filled.

No symbolic link is followed, nothing blocks, and nothing of any size is read whole.

Each part of a path is opened below the folder before it, so that no link can be put there between a check and a use.
"""

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath

FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""No link is followed. A FIFO without a writer would block."""


class UntrustedFileError(OSError):
    """There is something else than an ordinary file, or a larger one than allowed, or a path that leads out."""


@contextmanager
def open_untrusted(root: Path, path: PurePath, flags: int = 0) -> Iterator[int]:
    """Open `path` below `root`, and yield its descriptor. Raises OSError: ELOOP or ENOTDIR for a link in any part."""
    with _folder_of(root, path) as folder:
        descriptor = os.open(path.name, FLAGS | flags, dir_fd=folder)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


@contextmanager
def _folder_of(root: Path, path: PurePath) -> Iterator[int]:
    """Open the folder of `path` below `root`. Raises OSError, which is UntrustedFileError if the path leads out."""
    if path.is_absolute() or not path.parts or ".." in path.parts:
        raise UntrustedFileError(f"not a path below a folder: {path}")
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in path.parts[:-1]:
            above, descriptor = descriptor, os.open(part, FLAGS | os.O_DIRECTORY, dir_fd=descriptor)
            os.close(above)
        yield descriptor
    finally:
        os.close(descriptor)


def read_untrusted(root: Path, path: PurePath, max_bytes: int) -> bytes:
    """Return the content of an ordinary file. Raises OSError, which is UntrustedFileError for other files."""
    with open_untrusted(root, path) as descriptor:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UntrustedFileError(f"not an ordinary file: {path}")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise UntrustedFileError(f"larger than {max_bytes} bytes: {path}")
    return content


def list_untrusted(root: Path, path: PurePath) -> list[str]:
    """Return the names in a folder, sorted. Raises OSError."""
    with open_untrusted(root, path, os.O_DIRECTORY) as descriptor, os.scandir(descriptor) as entries:
        return sorted(entry.name for entry in entries)


def status_of_untrusted(root: Path, path: PurePath) -> os.stat_result | None:
    """Return the status of what is at `path` itself, None where nothing is. Raises UntrustedFileError."""
    try:
        with _folder_of(root, path) as folder:
            return os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except UntrustedFileError:
        raise
    except OSError:
        return None


def remove_untrusted(root: Path, path: PurePath) -> None:
    """Remove what is at `path`, of any kind, also a directory without permissions. Raises OSError."""
    with suppress(FileNotFoundError), _folder_of(root, path) as folder:
        try:
            os.unlink(path.name, dir_fd=folder)
        except IsADirectoryError:
            # A new name in the same folder needs no permission of the directory itself, its removal may.
            aside = f".removed-{secrets.token_hex(8)}"
            os.rename(path.name, aside, src_dir_fd=folder, dst_dir_fd=folder)
            with suppress(OSError, RecursionError):
                shutil.rmtree(aside, dir_fd=folder)


def entries_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield what is in a folder, at any depth. What vanished, may not be read or has too long a path is left out."""
    waiting = [str(folder)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as children:
            for child in children:
                if child.is_dir(follow_symlinks=False):
                    waiting.append(child.path)
                yield child


def locks_below(folder: Path) -> list[PurePath]:
    """Return the paths below a folder of everything with the name of a lock of git."""
    return [PurePath(one.path).relative_to(folder) for one in entries_below(folder) if one.name.endswith(".lock")]


def remove_blocking(folder: Path, names: str, *, links: bool) -> None:
    """Remove pipes and the like, for which a program would wait, from a folder at any depth; with `links` these too.

    `names` is the beginning of the names that count. Raises OSError.
    """
    for child in entries_below(folder):
        if not child.name.startswith(names):
            continue
        ordinary = child.is_file(follow_symlinks=False) or child.is_dir(follow_symlinks=False)
        if not ordinary and (links or not child.is_symlink()):
            remove_untrusted(folder, PurePath(child.path).relative_to(folder))


def leads_out(name: str) -> bool:
    """Return whether a name from git's index, which an agent can write, is no path of a file in the worktree."""
    return any(part in ("", ".", "..") or part.casefold() == ".git" for part in name.removesuffix("/").split("/"))
