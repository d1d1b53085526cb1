"""What a request changed, read from the clone of its repository where that is on this machine, side by side."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path
from typing import Final

from bot import refs
from bot.tree import Clone, Git, GitError

MOST_SECONDS: Final = 3.0
MOST_COMMITS: Final = 50
MOST_BYTES: Final = 200_000
FOLDED_FROM: Final = 200
"""A file with so many lines is folded."""
MOST_COMPARED: Final = 10_000
"""Pairs of words in two lines; of longer ones no words are compared, for that takes long."""
LEAST_ALIKE: Final = 0.4
"""How alike two lines are whose words are compared: with less in common, all would be coloured."""
_HUNK: Final = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)")
_WORDS: Final = re.compile(r"\w+|\s+|.")

Piece = tuple[str, bool]
"""A part of a line, and whether it differs from the line beside it."""


@dataclass(frozen=True, slots=True)
class Side:
    """A line of a file before or after: its number and its parts."""

    number: int
    pieces: Sequence[Piece]
    differs: bool


@dataclass(slots=True)
class File:
    """A file that was changed: rows of lines beside each other, between which a heading tells where they are.

    `facts` are git's words where it shows no lines: a rename, a mode, a binary file.
    """

    name: str
    facts: list[str] = field(default_factory=list)
    rows: list[tuple[Side | None, Side | None] | str] = field(default_factory=list)
    added: int = 0
    removed: int = 0

    @property
    def is_folded(self) -> bool:
        return len(self.rows) >= FOLDED_FROM


@dataclass(frozen=True, slots=True)
class Changed:
    """Commits, each with its short name and subject, and the files."""

    commits: Sequence[tuple[str, str]]
    files: Sequence[File]
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
    text = shown[:MOST_BYTES].decode("utf-8", "replace")
    return Changed(commits, await asyncio.to_thread(files_of, text), len(shown) > MOST_BYTES)


def files_of(text: str) -> list[File]:
    """Return the files of git's diff, which may end anywhere.

    Each hunk says how many lines it has, so that no line of a file is taken for git's own words.
    """
    files: list[File] = []
    lines = iter(text.rstrip("\n").split("\n"))
    for line in lines:
        hunk = _HUNK.match(line)
        if line.startswith("diff --git "):
            files.append(File(_name(line)))
        elif hunk is not None and files:
            _read_hunk(files[-1], hunk, lines)
        elif files and line.startswith(("+++ ", "--- ")):
            name = _unquoted(line[4:])
            files[-1].name = name.partition("/")[2] if name != "/dev/null" else files[-1].name
        elif files and line and not line.startswith(("index ", "similarity ", "\\ ")):
            files[-1].facts.append(line)
    return files


def _read_hunk(file: File, hunk: re.Match[str], lines: Iterator[str]) -> None:
    old, new = int(hunk[1]), int(hunk[3])
    left_old, left_new = int(hunk[2] or 1), int(hunk[4] or 1)
    removed, added = list[str](), list[str]()
    file.rows.append(f"Line {new}{hunk[5]}")
    while left_old > 0 or left_new > 0:
        line = next(lines, None)
        if line is None:
            break
        kind, words = line[:1], line[1:]
        if kind == "-":
            removed.append(words)
            left_old -= 1
        elif kind == "+":
            added.append(words)
            left_new -= 1
        elif kind != "\\":
            old, new = _flush(file, removed, added, old, new)
            same = ((words, False),)
            file.rows.append((Side(old, same, False), Side(new, same, False)))
            old, new, left_old, left_new = old + 1, new + 1, left_old - 1, left_new - 1
    _flush(file, removed, added, old, new)


def _flush(file: File, removed: list[str], added: list[str], old: int, new: int) -> tuple[int, int]:
    """Put what was removed beside what was added in its place; return the numbers of the lines that follow."""
    for before, after in zip_longest(removed, added):
        left, right = _compared(before, after)
        file.rows.append(
            (
                None if before is None else Side(old, left, True),
                None if after is None else Side(new, right, True),
            )
        )
        old, new = old + (before is not None), new + (after is not None)
    file.removed, file.added = file.removed + len(removed), file.added + len(added)
    removed.clear()
    added.clear()
    return old, new


def _compared(before: str | None, after: str | None) -> tuple[Sequence[Piece], Sequence[Piece]]:
    """Return the parts of two lines with those words marked that differ."""
    old, new = _WORDS.findall(before or ""), _WORDS.findall(after or "")
    if before is None or after is None or len(old) * len(new) > MOST_COMPARED:
        return ((before or "", False),), ((after or "", False),)
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    if matcher.ratio() < LEAST_ALIKE:
        return ((before, False),), ((after, False),)
    left, right = list[Piece](), list[Piece]()
    for kind, a, b, c, d in matcher.get_opcodes():
        left += [("".join(old[a:b]), kind != "equal")] if a < b else []
        right += [("".join(new[c:d]), kind != "equal")] if c < d else []
    return left, right


def _name(line: str) -> str:
    """Return the file's name, where both are the same: `a/NAME b/NAME`. Lines that follow tell it where they differ."""
    names = line.removeprefix("diff --git ")
    half = len(names) // 2
    return _unquoted(names[half + 1 :]).partition("/")[2]


def _unquoted(name: str) -> str:
    """Return a name as git writes it, without what it adds to odd ones; escapes stay as they are."""
    return name.rstrip("\t").removeprefix('"').removesuffix('"')
