"""Read files of a folder that an agent or another user may have filled, without following their symbolic links.

Each part of a path is opened below the folder before it, so that no link can be put there between a check and a use.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

# A FIFO without a writer would block.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class UntrustedFileError(OSError):
    """There is something else than an ordinary file, or a larger one than allowed."""


@contextmanager
def open_untrusted(root: Path, path: PurePath, flags: int = 0) -> Iterator[int]:
    """Open `path` below `root`, and yield its descriptor. Raises OSError: ELOOP or ENOTDIR for a link in any part."""
    parts = path.parts
    if path.is_absolute() or not parts or ".." in parts:
        raise ValueError(f"not a path below a folder: {path}")
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            above, descriptor = descriptor, os.open(part, _FLAGS | os.O_DIRECTORY, dir_fd=descriptor)
            os.close(above)
        above, descriptor = descriptor, os.open(parts[-1], _FLAGS | flags, dir_fd=descriptor)
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
