"""What a request changed, read from the clone of its repository where that is on this machine."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bot import refs
from bot.tree import Clone, Git, GitError

MOST_SECONDS: Final = 3.0
MOST_COMMITS: Final = 50
MOST_BYTES: Final = 200_000
_KINDS: Final = {"+++": "file", "---": "file", "@@": "hunk", "+": "added", "-": "removed", "diff ": "file"}


@dataclass(frozen=True, slots=True)
class Changed:
    """Commits, each with its short name and subject, and the lines of the diff with what each is."""

    commits: Sequence[tuple[str, str]]
    lines: Sequence[tuple[str, str]]
    is_cut: bool


async def changed(data_dir: Path, folder: str, before: str, after: str) -> Changed | None:
    """Return what lies between two commits; None where they are not here, or git takes too long for a page."""
    if not (refs.is_commit(before) and refs.is_commit(after)):
        return None
    try:
        clone = Clone.at(data_dir, folder, Git())
        if not clone.path.is_dir():
            return None
        async with asyncio.timeout(MOST_SECONDS):
            return await _changed(clone, before, after)
    except (GitError, refs.InvalidNameError, OSError, TimeoutError):
        return None


async def _changed(clone: Clone, before: str, after: str) -> Changed:
    listed = await clone.log("%h %s", "--first-parent", f"--max-count={MOST_COMMITS}", f"{before}..{after}")
    commits = [(line.partition(" ")[0], line.partition(" ")[2]) for line in listed]
    shown = await clone.shown_diff(before, after, MOST_BYTES)
    lines = shown[:MOST_BYTES].decode("utf-8", "replace").rstrip("\n").split("\n")
    return Changed(commits, [(_kind(line), line) for line in lines], len(shown) > MOST_BYTES)


def _kind(line: str) -> str:
    return next((kind for begins, kind in _KINDS.items() if line.startswith(begins)), "")
