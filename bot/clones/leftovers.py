"""What a git that was killed leaves behind in a clone: locks that nobody holds, packs that nobody finishes."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from bot.git.runner import Git

# Without a cage an agent's git works in the clone at any time: what it made just now is its own.
STALE_LOCK_SECONDS = 60
STALE_PACK_SECONDS = 3600


def remove_stale_locks(clone: Path, git: Git) -> bool:
    """Removes lock files that no living git can hold; whether there was one. Only with the clone's lock held."""
    found = [*clone.glob("*.lock"), *clone.glob("objects/info/**/*.lock"), *_below(clone / "refs", ".lock")]
    removed = [_remove(file, git, STALE_LOCK_SECONDS) for file in found]
    return any(removed)


def remove_unfinished_packs(clone: Path, git: Git) -> None:
    """Removes what an interrupted fetch received: it is of no use, and large. Only with the clone's lock held."""
    for file in (*clone.glob("objects/pack/tmp_*"), *clone.glob("objects/pack/.tmp-*")):
        _remove(file, git, STALE_PACK_SECONDS)


def _below(folder: Path, suffix: str) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names if name.endswith(suffix))


def _remove(file: Path, git: Git, stale_seconds: float) -> bool:
    try:
        if git.cage is None and time.time() - file.lstat().st_mtime < stale_seconds:
            return False
        file.unlink()
    except FileNotFoundError:
        return False
    return True
