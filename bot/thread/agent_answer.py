"""The agent's answer as comments: made harmless, its folds kept, cut into few parts, everything closed in each."""

import re
from collections.abc import Iterator

from bot.markdown import line_blocks, runs
from bot.thread.formatting import code_block, one_line
from bot.thread.marker import LONGEST_MARKER, without_markers
from bot.thread.sanitize import FOLDS, WORD_JOINER, closed, host_of, is_inert, sanitize

# GitHub refuses longer bodies and counts characters, not bytes: "Body is too long (maximum is 65536 characters)".
GITHUB_COMMENT_CHARACTERS = 65_536
# Room for the marker and for `[redacted]` standing where something shorter stood.
COMMENT_CHARACTERS = GITHUB_COMMENT_CHARACTERS - LONGEST_MARKER - 256
LONGEST_ANSWER = 256 * 1024
MOST_COMMENTS = 5

_SHORTEST_PART = 20
# What `code_block` adds to a text without backticks, and some more.
_FENCES = 16
_LONGEST_SUMMARY = 200
_MOST_NESTED = 3

_OPENS = re.compile(r"<details(?: open)?>\s*(?:<summary>(?P<words>[^<>]*)</summary>\s*)?", re.IGNORECASE)
_SUMMARY = re.compile(r"<summary>(?P<words>[^<>]*)</summary>\s*", re.IGNORECASE)
_CLOSES = re.compile(r"</details>\s*", re.IGNORECASE)
_LIVE_IN_HTML = re.compile(r"@|#|(?<=GH)-|(?<=:)//|(?<=www)\.", re.IGNORECASE)

_FENCE = re.compile(
    r"(?P<prefix>[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*)(?P<ticks>`{3,}(?=[^`]*$)|~{3,})(?P<info>.*)$", re.MULTILINE
)


# The line that only the host writes (`bot.thread.checks`).
_POSES = re.compile(r"^([ \t>*_#-]*)(?=check (?:passed|failed|did not run)\b[ *_]*·)", re.MULTILINE | re.IGNORECASE)


class _Tag(str):
    """What opens or closes a fold."""

    __slots__ = ()


_END = _Tag("\n\n</details>")


def answer_parts(answer: str, *, server_url: str, limit: int = COMMENT_CHARACTERS) -> tuple[tuple[str, ...], bool]:
    """Return the answer in harmless parts of at most `limit` characters, and whether it was cut.

    No parts for an empty answer. At most MOST_COMMENTS: time and memory are bounded, also for the worst Markdown.
    """
    # Markdown counts a carriage return as the end of a line: so does what counts lines here.
    shown = answer[:LONGEST_ANSWER].replace("\r\n", "\n").replace("\r", "\n").strip("\n")
    if not shown.strip():
        return (), False
    shown = _POSES.sub(r"\1The agent says: ", shown)
    parts: list[str] = [""]
    folds: list[str] = []  # what opens each fold that is open
    for segment in _segments(shown):
        if segment is _END:
            parts[-1] += _END
            folds.pop()
            continue
        is_fold = isinstance(segment, _Tag)
        room = max(limit // 4, limit - sum(len(fold) + len(_END) + 2 for fold in folds))
        for unit in (segment,) if is_fold else _units(segment, server_url, room):
            if parts[-1] and len(parts[-1]) + 2 + len(unit) + len(_END) * (len(folds) + is_fold) > limit:
                parts[-1] += _END * len(folds)
                parts.append("\n\n".join(folds))
            parts[-1] += f"\n\n{unit}" if parts[-1] else unit
            if len(parts) > MOST_COMMENTS:
                break
        if is_fold:
            folds.append(segment)
    parts[-1] += _END * len(folds)
    whole = tuple(_checked(part, server_url, limit) for part in parts[:MOST_COMMENTS])
    return whole, len(answer) > LONGEST_ANSWER or len(parts) > MOST_COMMENTS


def _checked(part: str, server_url: str, limit: int) -> str:
    """Return the part, or it as code where units that are harmless by themselves are not beside each other.

    After a list, for example, indented code is text.
    """
    if is_inert(part, host_of(server_url), FOLDS):
        return part
    fences = len(code_block(part)) - len(part)
    return code_block(part[: limit - fences - _FENCES], "text")


def _units(markdown: str, server_url: str, limit: int) -> Iterator[str]:
    """Yield harmless texts, each whole in itself and within the limit."""
    for part in split(markdown.strip("\n"), limit - _FENCES):
        if part.strip():
            yield from _harmless(part, server_url, limit)


def _segments(markdown: str) -> Iterator[str]:
    """Cut the text before and after what opens and closes folds, which is written anew. Every fold is closed once."""
    lines, blocks = markdown.split("\n"), line_blocks(markdown) if "<details" in markdown.lower() else {}
    begin = number = depth = 0
    while number < len(lines):
        is_code = number in blocks and blocks[number][0] == "pre"
        opened = None if is_code or depth == _MOST_NESTED else _OPENS.fullmatch(lines[number])
        closes = not is_code and depth > 0 and _CLOSES.fullmatch(lines[number]) is not None
        number += 1
        if opened is None and not closes:
            continue
        yield "\n".join(lines[begin : number - 1])
        words = opened["words"] if opened else None
        if opened and words is None and number < len(lines) and (summary := _SUMMARY.fullmatch(lines[number])):
            words, number = summary["words"], number + 1
        begin, depth = number, depth + (-1 if closes else 1)
        yield _END if closes else _Tag(f"<details>\n<summary>{_summary(words or 'Details')}</summary>")
    yield "\n".join(lines[begin:])
    yield from [_END] * depth


def _summary(words: str) -> str:
    """Return the words for raw HTML, where Markdown is not read but mentions, references and addresses are."""
    line = one_line(without_markers(words))[:_LONGEST_SUMMARY].replace("&", "&amp;")
    return _LIVE_IN_HTML.sub(lambda live: f"{live[0]}{WORD_JOINER}", line) or "Details"


def _harmless(part: str, server_url: str, limit: int) -> Iterator[str]:
    """Make one part harmless by itself: a cut may turn code into text. Cut it further where that made it too long."""
    safe = closed(sanitize(part, server_url))
    if len(safe) <= limit or len(part) < _SHORTEST_PART:
        yield safe[:limit]
    else:
        for piece in split(part, len(part) // 2):
            yield from _harmless(piece, server_url, limit)


# Long Markdown is cut between blocks. Code fences are whole, or closed and opened again.


def split(markdown: str, limit: int = COMMENT_CHARACTERS) -> tuple[str, ...]:
    """Return the text in parts of at most `limit` characters; one part, unchanged, if it fits. No part is empty."""
    if len(markdown) <= limit:
        return (markdown,)
    parts: list[list[str]] = [[]]
    size = 0
    for text, tag in runs(markdown):
        for piece in _pieces(text, tag, limit):
            if size + len(piece.rstrip()) > limit:
                parts.append([])
                size = 0
            parts[-1].append(piece)
            size += len(piece) + 1
    joined = ("\n".join(part).lstrip("\n").rstrip() for part in parts)
    return tuple(filter(None, joined)) or ("",)


def _pieces(text: str, tag: str, limit: int) -> Iterator[str]:
    """Yield a block as it is if it fits; else cut it at lines, then at words, then anywhere."""
    fence = _FENCE.match(text) if tag == "pre" else None
    if len(text) <= limit:
        yield text
    elif fence is not None and limit >= 4 * len(fence[0]) + 40:
        yield from _fences(text, fence, limit)
    else:
        yield from _cut(text, limit)


def _fences(text: str, fence: re.Match[str], limit: int) -> Iterator[str]:
    opening, _, code = text.partition("\n")
    # A list item's own mark must not begin another one.
    closing = re.sub(r"[^\s>]", " ", fence["prefix"]) + fence["ticks"]
    body, _, last = code.rstrip().rpartition("\n")
    bare = last.lstrip(" \t>")
    is_closed = bare.startswith(fence["ticks"]) and not bare.strip(bare[0])
    room = limit - max(len(opening), len(closing + fence["info"])) - len(closing) - 2
    for chunk in _cut(body if is_closed else code.rstrip("\n"), room):
        yield f"{opening}\n{chunk.rstrip(chr(10))}\n{closing}"
        opening = closing + fence["info"]


def _cut(text: str, limit: int) -> Iterator[str]:
    """Cut at the last good place within the limit; in its second half only, so that parts do not get tiny."""
    while len(text) > limit:
        at = text.rfind("\n", limit // 2, limit) + 1 or text.rfind(" ", limit // 2, limit) + 1 or limit
        yield text[:at]
        text = text[at:]
    if text:
        yield text
