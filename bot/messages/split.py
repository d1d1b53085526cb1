"""Long Markdown in several comments: cut between paragraphs.

Code fences are whole or closed and opened again; tables are whole or repeat their header.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from bot.messages.marker import LONGEST_MARKER

# GitHub refuses longer bodies and counts characters, not bytes: "Body is too long (maximum is 65536 characters)".
GITHUB_COMMENT_CHARACTERS = 65_536
# Room for the marker and for `[redacted]` standing where something shorter stood.
COMMENT_CHARACTERS = GITHUB_COMMENT_CHARACTERS - LONGEST_MARKER - 256

_FENCE = re.compile(
    r"^(?P<prefix>[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*)(?P<fence>`{3,}(?=[^`]*$)|~{3,})(?P<info>.*)$"
)
# https://github.github.com/gfm/#tables-extension-
_DELIMITER_ROW = re.compile(r"\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_ZERO_WIDTH_JOINER = "\u200d"
_JOINERS = frozenset(f"{_ZERO_WIDTH_JOINER}\ufe0e\ufe0f")


@dataclass(frozen=True, slots=True)
class Fence:
    """A line that opens a code fence: its prefix, its ticks, its info string."""

    prefix: str
    ticks: str
    info: str

    def closed_by(self, line: str) -> bool:
        bare = line.lstrip(" \t>").rstrip()
        return len(bare) >= len(self.ticks) and not bare.strip(self.ticks[0])

    @property
    def closing(self) -> str:
        # A list item's or quote's own mark must not begin another one.
        return re.sub(r"[^\s>]", " ", self.prefix) + self.ticks

    @property
    def opening(self) -> str:
        return self.closing + self.info


@dataclass(frozen=True, slots=True)
class Block:
    """Lines that belong together, with the blank lines after them; `fence` where they are one code fence."""

    text: str
    fence: Fence | None


def split(markdown: str, limit: int = COMMENT_CHARACTERS) -> tuple[str, ...]:
    """Return the text in parts of at most `limit` characters; one part, unchanged, if it fits. No part is empty."""
    if len(markdown) <= limit:
        return (markdown,)
    parts: list[str] = []
    current = ""
    for block in blocks(markdown):
        for piece in pieces(block, limit):
            if len((current + piece).rstrip()) > limit and current.strip():
                parts.append(current.lstrip("\n").rstrip())
                current = ""
            current += piece
    if current.strip():
        parts.append(current.lstrip("\n").rstrip())
    return tuple(parts) or ("",)


def blocks(markdown: str) -> Iterator[Block]:
    """Cut the text after each paragraph and each code fence; joined, the blocks are the text again."""
    lines: list[str] = []
    fence: Fence | None = None
    blank_after = False
    for line in _LINE.findall(markdown):
        if fence is not None and not blank_after:
            lines.append(line)
            blank_after = fence.closed_by(line)
            continue
        opened = None if (match := _FENCE.match(line.rstrip("\r\n"))) is None else Fence(*match.groups())
        starts = bool(line.strip()) and blank_after
        if lines and (starts or opened is not None):
            yield Block("".join(lines), fence)
            lines, fence, blank_after = [], None, False
        lines.append(line)
        if opened is not None:
            fence, blank_after = opened, False
        elif not line.strip():
            blank_after = True
    if lines:
        yield Block("".join(lines), fence)


def pieces(block: Block, limit: int) -> Iterator[str]:
    """Return the block itself if it fits; else cut it at lines, then at words, then anywhere."""
    if len(block.text.rstrip()) <= limit:
        yield block.text
    elif block.fence is None and (header := _table_header(block.text)) and 2 * len(header) < limit:
        yield from _table_pieces(block.text[len(header) :], header, limit)
    elif block.fence is not None and limit >= 4 * len(block.fence.opening) + 40:
        yield from _fence_pieces(block, block.fence, limit)
    else:
        yield from _cut(block.text, limit)


def _fence_pieces(block: Block, fence: Fence, limit: int) -> Iterator[str]:
    first, _, inside = block.text.partition("\n")
    opening = first + "\n"
    body, _, last = inside.rstrip().rpartition("\n")
    if not fence.closed_by(last):
        body = inside.rstrip("\n")
    room = limit - max(len(opening), len(fence.opening) + 1) - len(fence.closing) - 2
    for chunk in _cut(body, room):
        yield f"{opening}{chunk.rstrip(chr(10))}\n{fence.closing}\n\n"
        opening = f"{fence.opening}\n"


def _table_header(text: str) -> str:
    """Return the first two lines of a table, nothing where the text is none."""
    lines = _LINE.findall(text)[:2]
    is_table = len(lines) == 2 and "|" in lines[0] and _DELIMITER_ROW.fullmatch(lines[1]) is not None
    return "".join(lines) if is_table and "|" in lines[1] else ""


def _table_pieces(rows: str, header: str, limit: int) -> Iterator[str]:
    """Cut a table between its rows and repeat its header; a row that is too long is cut."""
    for chunk in _cut(rows, limit - len(header)):
        yield f"{header}{chunk.strip(chr(10))}\n\n"


def _cut(text: str, limit: int) -> Iterator[str]:
    while len(text) > limit:
        at = _cut_at(text, limit)
        yield text[:at]
        text = text[at:]
    if text:
        yield text


def _cut_at(text: str, limit: int) -> int:
    """Return the last good place within the limit; in its second half only, so that parts do not get tiny."""
    for separator in ("\n", " "):
        if (at := text.rfind(separator, limit // 2, limit)) > 0:
            return at + 1
    at = limit
    while at > limit // 2 and _within_character(text[at - 1], text[at]):
        at -= 1
    return max(at, 1)


def _within_character(before: str, after: str) -> bool:
    """Return whether two code points belong to one visible character."""
    return before == _ZERO_WIDTH_JOINER or after in _JOINERS or unicodedata.combining(after) != 0
