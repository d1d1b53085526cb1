"""The agent's answer as comments: made harmless, its folds kept, cut into few parts, everything closed in each."""

import re
import time
from collections.abc import Iterator, Sequence

from bot.markdown import MarkdownError, PageLine, line_blocks, page_lines, runs
from bot.thread.checks import begins_as_hosts
from bot.thread.formatting import code_block, one_line
from bot.thread.marker import LONGEST_MARKER, without_markers
from bot.thread.sanitize import FOLDS, WORD_JOINER, TooSlowError, closed, host_of, is_inert, sanitize

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
_MOST_NAMINGS = 3

_OPENS = re.compile(r"<details(?: open)?>\s*(?:<summary>(?P<words>[^<>]*)</summary>\s*)?", re.IGNORECASE)
_SUMMARY = re.compile(r"<summary>(?P<words>[^<>]*)</summary>\s*", re.IGNORECASE)
_CLOSES = re.compile(r"</details>\s*", re.IGNORECASE)
_LIVE_IN_HTML = re.compile(r"@|#|(?<=GH)-|(?<=:)//|(?<=www)\.", re.IGNORECASE)

_FENCE = re.compile(
    r"(?P<prefix>[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*)(?P<ticks>`{3,}(?=[^`]*$)|~{3,})(?P<info>.*)$", re.MULTILINE
)


_AGENT_SAYS = "The agent says: "
# What stands before the words of a line: marks of quotations, items, tasks, headings, cells and emphasis.
_BEFORE_WORDS = re.compile(r"(?:[ \t>|]|[-+*][ \t]|\d{1,9}[.)][ \t]|\[[ xX]\][ \t]|#{1,6}[ \t])*[*_~]*")
# They show a text from right to left, whatever its letters are.
_OVERRIDES = dict.fromkeys((0x202D, 0x202E))
_MOST_SECONDS = 10.0
"""Time of the processor. The slowest answer that was found takes a quarter of that."""


class _Tag(str):
    """What opens or closes a fold."""

    __slots__ = ()


_END = _Tag("\n\n</details>")


def answer_parts(
    answer: str, *, server_url: str, limit: int = COMMENT_CHARACTERS, seconds: float = _MOST_SECONDS
) -> tuple[tuple[str, ...], bool]:
    """Return the answer in harmless parts of at most `limit` characters, and whether it was cut.

    No parts for an empty answer. At most MOST_COMMENTS: time and memory are bounded, also for the worst Markdown. An
    answer that takes longer than `seconds` of the processor is code. No line of it is like the host's on a check.
    """
    # Markdown counts a carriage return as the end of a line: so does what counts lines here.
    shown = answer[:LONGEST_ANSWER].replace("\r\n", "\n").replace("\r", "\n").strip("\n").translate(_OVERRIDES)
    if not shown.strip():
        return (), False
    try:
        parts = _parts(shown, server_url, limit, time.thread_time() + seconds)
    except TooSlowError:
        parts = list(_in_code(shown, limit))
    return tuple(parts[:MOST_COMMENTS]), len(answer) > LONGEST_ANSWER or len(parts) > MOST_COMMENTS


def _parts(shown: str, server_url: str, limit: int, until: float) -> list[str]:
    """Return the parts; one more than MOST_COMMENTS for a longer answer. Raises TooSlowError."""
    parts: list[str] = [""]
    folds: list[str] = []  # what opens each fold that is open
    for segment in _segments(shown):
        if segment is _END:
            parts[-1] += _END
            folds.pop()
            continue
        is_fold = isinstance(segment, _Tag)
        room = max(limit // 4, limit - sum(len(fold) + len(_END) + 2 for fold in folds))
        for unit in (segment,) if is_fold else _units(segment, server_url, room, until):
            if parts[-1] and len(parts[-1]) + 2 + len(unit) + len(_END) * (len(folds) + is_fold) > limit:
                parts[-1] += _END * len(folds)
                parts.append("\n\n".join(folds))
            parts[-1] += f"\n\n{unit}" if parts[-1] else unit
            if len(parts) > MOST_COMMENTS:
                break
        if is_fold:
            folds.append(segment)
    parts[-1] += _END * len(folds)
    return [_checked(part, server_url, limit, until) for part in parts]


def _checked(part: str, server_url: str, limit: int, until: float) -> str:
    """Return the part, or it as code where units that are harmless by themselves are not beside each other.

    After a list, for example, indented code is text. Raises TooSlowError.
    """
    if time.thread_time() > until:
        raise TooSlowError
    if is_inert(part, host_of(server_url), FOLDS) and not _as_hosts(part):
        return part
    return next(_in_code(part, limit))


def _in_code(text: str, limit: int) -> Iterator[str]:
    """Yield a text as blocks of code, each line that begins as the host's with the agent's name before it."""
    text = "\n".join(f"{_AGENT_SAYS}{line}" if begins_as_hosts(line) else line for line in text.split("\n"))
    fences = len(code_block(text, "text")) - len(text)
    # A fence is longer than all ticks in it: of ticks alone a third is text.
    for piece in _cut(without_markers(text), max(limit - fences - _FENCES, limit // 3 - _FENCES)):
        yield code_block(piece, "text")


def _as_hosts(markdown: str) -> list[PageLine]:
    """Return the lines of the page that begin as only the host's do; of a row of a table, its first cell."""
    try:
        return [line for line in page_lines(markdown, rows=True) if begins_as_hosts(line.text)]
    except MarkdownError:  # it is code by then, line by line
        return [PageLine("", at, at) for at, line in enumerate(markdown.split("\n")) if begins_as_hosts(line)]


def _named(markdown: str) -> str:
    """Return the text with the agent's name in each line of the page that begins as only the host's do."""
    for _ in range(_MOST_NAMINGS):
        if not (found := _as_hosts(markdown)):
            return markdown
        lines = markdown.split("\n")
        for at in {_source_of(line, lines) for line in found}:
            begin = _BEFORE_WORDS.match(lines[at]).end()  # type: ignore[union-attr]  # it matches any line
            lines[at] = lines[at][:begin] + _AGENT_SAYS + lines[at][begin:]
        markdown = "\n".join(lines)
    return "\n\n".join(_in_code(markdown, len(markdown)))


def _source_of(line: PageLine, lines: Sequence[str]) -> int:
    """Return the source of a line of the page. That of code begins below its fence."""
    below = line.first + 1
    is_below = below < line.end and begins_as_hosts(lines[below]) and not begins_as_hosts(lines[line.first])
    return below if is_below else line.first


def _units(markdown: str, server_url: str, limit: int, until: float) -> Iterator[str]:
    """Yield harmless texts, each whole in itself and within the limit. Raises TooSlowError."""
    for part in split(markdown.strip("\n"), limit - _FENCES):
        if part.strip():
            yield from _harmless(part, server_url, limit, until)


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
    line = one_line(without_markers(words))
    line = (f"{_AGENT_SAYS}{line}" if begins_as_hosts(line) else line)[:_LONGEST_SUMMARY].replace("&", "&amp;")
    return _LIVE_IN_HTML.sub(lambda live: f"{live[0]}{WORD_JOINER}", line) or "Details"


def _harmless(part: str, server_url: str, limit: int, until: float) -> Iterator[str]:
    """Make one part harmless by itself: a cut may turn code into text. Cut it further where that made it too long."""
    if time.thread_time() > until:
        raise TooSlowError
    safe = closed(_named(sanitize(part, server_url, until)))
    if len(safe) <= limit or len(part) < _SHORTEST_PART:
        yield safe[:limit]
    else:
        for piece in split(part, len(part) // 2):
            yield from _harmless(piece, server_url, limit, until)


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
