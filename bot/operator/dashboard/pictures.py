"""The pictures of a check, read from the clone, where they were committed to be pushed: no page loads others."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bot import refs
from bot.check.reports import MAX_PICTURE_BYTES, media_type
from bot.thread.checks import BEFORE
from bot.tree import Clone, Git, GitError

MOST_SECONDS: Final = 3.0
MOST_SHOWN: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Shown:
    """A picture, and the name of the one of the default branch that looks otherwise."""

    name: str
    before: str | None


async def pictures_at(data_dir: Path, folder: str, commit: str) -> Sequence[Shown]:
    """Return the pictures of a commit, those that look otherwise first; none where it is not on this machine."""
    names = await _named(data_dir, folder, commit)
    befores = {name.removeprefix(f"{BEFORE}-"): name for name in names if name.startswith(f"{BEFORE}-")}
    found = [Shown(name, befores.get(name)) for name in names if name not in befores.values()]
    return sorted(found, key=lambda one: one.before is None)


async def picture(data_dir: Path, folder: str, commit: str, name: str) -> tuple[bytes, str] | None:
    """Return a picture and its type; None where it is not on this machine, or is no picture."""
    blob = (await _named(data_dir, folder, commit)).get(name)
    if blob is None:
        return None
    try:
        async with asyncio.timeout(MOST_SECONDS):
            data = (await Clone.at(data_dir, folder, Git()).run("cat-file", "blob", blob)).stdout
    except (GitError, OSError, TimeoutError):
        return None
    kind = media_type(data)
    return (data, kind) if kind is not None else None


async def _named(data_dir: Path, folder: str, commit: str) -> Mapping[str, str]:
    """Return the files of a commit with their objects, by names that mean nothing to a browser."""
    try:
        clone = Clone.at(data_dir, folder, Git())
        if not refs.is_commit(commit) or not clone.path.is_dir():
            return {}
        async with asyncio.timeout(MOST_SECONDS):
            listed = (await clone.run("ls-tree", "-z", "--long", commit)).fields
    except (GitError, refs.InvalidNameError, OSError, TimeoutError):
        return {}
    found = {}
    for line in listed[:MOST_SHOWN]:
        facts, _, name = line.partition("\t")
        mode, kind, blob, size = facts.split()
        if kind == "blob" and mode.startswith("100") and int(size) <= MAX_PICTURE_BYTES and _NAME.fullmatch(name):
            found[name] = blob
    return found
