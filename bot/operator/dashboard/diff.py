"""What a request changed, read from the clone of its repository where that is on this machine."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bot.tree.clone.clone import Clone, clone_at
from bot.tree.git import refs
from bot.tree.git.errors import GitError
from bot.tree.git.runner import Git, piped

MOST_SECONDS: Final = 3.0
MOST_COMMITS: Final = 50
MOST_BYTES: Final = 200_000
_KINDS: Final = {"+++": "file", "---": "file", "@@": "hunk", "+": "added", "-": "removed", "diff ": "file"}
# A larger file is told as a binary one: git would hold it in memory.
_SMALL_FILES: Final = ("-c", "core.bigFileThreshold=1m")


@dataclass(frozen=True, slots=True)
class Changed:
    """Commits, each with its short name and subject, and the lines of the diff with what each is."""

    commits: Sequence[tuple[str, str]]
    lines: Sequence[tuple[str, str]]
    is_cut: bool


async def changed(data_dir: Path, folder: str, before: str, after: str) -> Changed | None:
    """Return what lies between two commits; None where they are not here, or git takes too long for a page."""
    owner, _, name = folder.partition("/")
    if not (refs.is_commit(before) and refs.is_commit(after)):
        return None
    try:
        clone = clone_at(data_dir, owner, name, Git())
        if not clone.path.is_dir():
            return None
        async with asyncio.timeout(MOST_SECONDS):
            return await _changed(clone, before, after)
    except (GitError, refs.InvalidNameError, OSError, TimeoutError):
        return None


async def _changed(clone: Clone, before: str, after: str) -> Changed:
    between = ("--first-parent", f"--max-count={MOST_COMMITS}", f"{before}..{after}", "--")
    listed = await clone.run("log", "-z", "--format=%h %s", *between)
    commits = [(line.partition(" ")[0], line.partition(" ")[2]) for line in listed.fields]
    # An amended first commit has no ancestor in common with what it was.
    base = await clone.merge_base(before, after) or before
    options = ("--no-color", "--no-ext-diff", "--no-textconv", "--patch-with-stat", base, after, "--")
    shown = await piped(_first_bytes, partial(clone.git.on_clone, clone.path, *_SMALL_FILES, "diff", *options))
    lines = shown[:MOST_BYTES].decode("utf-8", "replace").rstrip("\n").split("\n")
    return Changed(commits, [(_kind(line), line) for line in lines], len(shown) > MOST_BYTES)


def _first_bytes(pieces: Iterator[bytes]) -> bytes:
    """Return the first pieces of a diff, a little more than is shown where there is more."""
    seen = b""
    for piece in pieces:
        seen += piece
        if len(seen) > MOST_BYTES:
            break
    return seen


def _kind(line: str) -> str:
    return next((kind for begins, kind in _KINDS.items() if line.startswith(begins)), "")
