"""Locks between processes: the kernel frees one when the process that holds it ends, also after kill -9."""

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_WORKER = re.compile(r"[0-9a-f]{16}")


def try_lock(path: Path, operation: int = fcntl.LOCK_EX, *, is_directory: bool = False) -> int | None:
    """Take the flock (LOCK_SH or LOCK_EX) of a file, which is made, or of a directory.

    Return its descriptor, which the caller closes, or None if it is taken. Raises OSError.
    """
    mode = os.O_RDONLY | os.O_DIRECTORY if is_directory else os.O_RDWR | os.O_CREAT
    descriptor = os.open(path, mode | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_locked(path: Path, operation: int = fcntl.LOCK_EX) -> bool:
    """Return whether another process holds the flock."""
    descriptor = try_lock(path, operation)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


@contextmanager
def worker_lock(directory: Path) -> Iterator[str]:
    """Give this process a name that is alive until the context, or the process, ends. A suspended process is alive."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    worker = secrets.token_hex(8)
    path = directory / f"{worker}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield worker
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def is_alive(directory: Path, worker: str) -> bool:
    """Return whether the process of this name is alive (on this machine, under this directory)."""
    path = directory / f"{worker}.lock"
    if not _WORKER.fullmatch(worker) or not path.exists():
        return False
    if is_locked(path):
        return True
    path.unlink(missing_ok=True)
    return False
