"""A ref is moved by its file, as git does it, where that needs no look at other refs."""

import os
import time
from contextlib import suppress
from pathlib import Path


def point_at(repository: Path, ref: str, commit: str, before: str | None, why: str | None = None) -> bool:
    """Move a ref of a bare repository from a commit, None to make it; return False where only git can do that.

    With `why` its log says so. The caller knows where the ref is, that the commit is there, and that no other ref is
    named like a folder of this one; it holds what keeps others of its kind away. git is kept away by its own lock.
    https://git-scm.com/docs/gitrepository-layout
    """
    file = repository / ref
    lock = file.with_name(f"{file.name}.lock")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError:
        return False
    try:
        with os.fdopen(descriptor, "w") as written:
            written.write(f"{commit}\n")
            written.flush()
            os.fsync(written.fileno())
        with suppress(FileNotFoundError):  # it is packed
            if file.read_text().strip() != before:
                raise FileExistsError(file)
        if why is not None:
            _log(repository, f"{before or '0' * len(commit)} {commit}", ref, why)
        lock.rename(file)
    except (OSError, UnicodeError):
        lock.unlink(missing_ok=True)
        return False
    return True


def _log(repository: Path, both: str, ref: str, why: str) -> None:
    log = repository / "logs" / ref
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as lines:
        lines.write(f"{both} threadtree <> {int(time.time())} +0000\t{why}\n")
