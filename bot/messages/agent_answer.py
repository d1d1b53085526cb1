"""The agent's answer as comments: made harmless, its folds kept, cut into few parts, everything closed in each."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from bot.messages.formatting import code_block, details, one_line
from bot.messages.marker import without_markers
from bot.messages.sanitize import FOLDS, WORD_JOINER, closed, code_lines, host_of, is_inert, sanitize
from bot.messages.split import COMMENT_CHARACTERS, split

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


@dataclass(frozen=True, slots=True)
class _Fold:
    summary: str
    content: str


def answer_parts(answer: str, *, server_url: str, limit: int = COMMENT_CHARACTERS) -> tuple[tuple[str, ...], bool]:
    """Return the answer in harmless parts of at most `limit` characters, and whether it was cut.

    No parts for an empty answer. At most MOST_COMMENTS: time and memory are bounded, also for the worst Markdown.
    """
    # Markdown counts a carriage return as the end of a line: so does what counts lines here.
    shown = answer[:LONGEST_ANSWER].replace("\r\n", "\n").replace("\r", "\n").strip("\n")
    if not shown.strip():
        return (), False
    parts: list[str] = []
    for unit in _units(shown, server_url, limit, nested=0):
        if parts and len(parts[-1]) + 2 + len(unit) <= limit:
            parts[-1] += f"\n\n{unit}"
        else:
            parts.append(unit)
        if len(parts) > MOST_COMMENTS:
            break
    is_cut = len(parts) > MOST_COMMENTS
    parts = [_checked(part, server_url, limit) for part in parts[:MOST_COMMENTS]]
    return tuple(parts), len(answer) > LONGEST_ANSWER or is_cut


def _checked(part: str, server_url: str, limit: int) -> str:
    """Return the part, or it as code where units that are harmless by themselves are not beside each other.

    After a list, for example, indented code is text.
    """
    if is_inert(part, host_of(server_url), FOLDS):
        return part
    fences = len(code_block(part)) - len(part)
    return code_block(part[: limit - fences - _FENCES], "text")


def _units(markdown: str, server_url: str, limit: int, *, nested: int) -> Iterator[str]:
    """Yield harmless texts, each whole in itself and within the limit. A longer fold becomes several."""
    for segment in _segments(markdown) if nested < _MOST_NESTED else (markdown,):
        if isinstance(segment, str):
            for part in split(segment.strip("\n"), limit - _FENCES):
                if part.strip():
                    yield from _harmless(part, server_url, limit)
            continue
        room = limit - len(details(segment.summary, ""))
        content: list[str] = []
        for unit in _units(segment.content, server_url, room, nested=nested + 1):
            if content and len("\n\n".join([*content, unit])) > room:
                yield details(segment.summary, "\n\n".join(content))
                content = []
            content.append(unit)
        yield details(segment.summary, "\n\n".join(content))


def _segments(markdown: str) -> Iterator[str | _Fold]:
    """Cut the text before and after each outer fold. A fold that is left open reaches to the end."""
    if "<details" not in markdown.lower():
        yield markdown
        return
    lines, code = markdown.split("\n"), code_lines(markdown)
    begin = number = 0
    while number < len(lines):
        opened = None if number in code else _OPENS.fullmatch(lines[number])
        if opened is None:
            number += 1
            continue
        yield "\n".join(lines[begin:number])
        words, first = opened["words"], number + 1
        if words is None and first < len(lines) and (summary := _SUMMARY.fullmatch(lines[first])):
            words, first = summary["words"], first + 1
        end = _end_of_fold(lines, code, first)
        yield _Fold(_summary(words or "Details"), "\n".join(lines[first:end]))
        begin = number = end + 1
    yield "\n".join(lines[begin:])


def _end_of_fold(lines: list[str], code: frozenset[int], first: int) -> int:
    """Return the line that closes the fold whose content begins at `first`, or the number of lines."""
    depth = 1
    for number in range(first, len(lines)):
        if number in code:
            continue
        depth += (_OPENS.fullmatch(lines[number]) is not None) - (_CLOSES.fullmatch(lines[number]) is not None)
        if depth == 0:
            return number
    return len(lines)


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
