"""Files that are there whole or not at all, also after a crash; and where a path leads."""

import os
import tempfile
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read: a reader, or a crash, meets the old one or the new one.

    A link is replaced, not followed. Root gives the file to whom the one before belonged, or the folder: the bot may
    run as another user. Raises OSError.
    """
    owner = (path if path.exists() else path.parent).lstat()
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if os.geteuid() == 0:
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
            os.fsync(descriptor)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def real_path(path: Path) -> Path:
    """Return `path` as git records it: symbolic links are resolved in its parents only."""
    return path.parent.resolve() / path.name
