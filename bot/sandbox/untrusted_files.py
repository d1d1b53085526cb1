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

# A FIFO without a writer would block.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class UntrustedFileError(OSError):
    """There is something else than an ordinary file, or a larger one than allowed, or a path that leads out."""


@contextmanager
def open_untrusted(root: Path, path: PurePath, flags: int = 0) -> Iterator[int]:
    """Open `path` below `root`, and yield its descriptor. Raises OSError: ELOOP or ENOTDIR for a link in any part."""
    with _folder_of(root, path) as folder:
        descriptor = os.open(path.name, _FLAGS | flags, dir_fd=folder)
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
            above, descriptor = descriptor, os.open(part, _FLAGS | os.O_DIRECTORY, dir_fd=descriptor)
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


def size_of_untrusted(root: Path, path: PurePath) -> int:
    """Return the bytes of a file or symbolic link itself; 0 where there is none. Raises UntrustedFileError."""
    try:
        with _folder_of(root, path) as folder:
            return os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_size
    except UntrustedFileError:
        raise
    except OSError:
        return 0


def remove_untrusted(root: Path, path: PurePath) -> None:
    """Remove what is at `path`, of any kind, also a directory without permissions. Raises OSError."""
    with _folder_of(root, path) as folder:
        try:
            os.unlink(path.name, dir_fd=folder)
        except FileNotFoundError:
            return
        except IsADirectoryError:
            # A new name in the same folder needs no permission of the directory itself, its removal may.
            aside = f".removed-{secrets.token_hex(8)}"
            os.rename(path.name, aside, src_dir_fd=folder, dst_dir_fd=folder)
            with suppress(OSError, RecursionError):
                shutil.rmtree(aside, dir_fd=folder)


def locks_below(root: Path) -> list[PurePath]:
    """Return the paths below `root` of everything with the name of a lock of git."""
    found: list[PurePath] = []
    waiting = [PurePath()]
    while waiting:
        below = waiting.pop()
        try:
            with os.scandir(root / below) as children:
                for child in children:
                    if child.name.endswith(".lock"):
                        found.append(below / child.name)
                    elif child.is_dir(follow_symlinks=False):
                        waiting.append(below / child.name)
        except OSError:  # it vanished, or may not be read, or its path is longer than the kernel takes
            continue
    return found
