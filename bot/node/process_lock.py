"""Tell whether a worker process is alive: the kernel frees its lock when it ends, also after kill -9."""

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_WORKER = re.compile(r"[0-9a-f]{16}")


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
    if not _WORKER.fullmatch(worker):
        return False
    path = directory / f"{worker}.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(descriptor)
