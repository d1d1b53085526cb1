"""The lines of a Markdown text that address a reader: no code, quotations, links or HTML comments."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import cast

from markdown_it import MarkdownIt, helpers
from markdown_it.rules_inline import StateInline, autolink, backtick, escape, html_inline
from markdown_it.token import Token

_SILENT_BLOCKS = {"blockquote_open": 1, "blockquote_close": -1}
_SILENT_HTML = re.compile(r"<(pre|code|a|blockquote|script|style)\b.*?(?:</\1\s*>|\Z)", re.IGNORECASE | re.DOTALL)
_HTML_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_HTML_TAG = re.compile(r"<[^<>]*>")
_SILENT_INLINE_TAG = re.compile(r"<(/?)(?:a|code|pre)\b", re.IGNORECASE)
# A blank line ends the HTML block but not the quotation.
_HTML_QUOTE = re.compile(r"<(/?)blockquote\b", re.IGNORECASE)
_BARE_ADDRESS = re.compile(r"(?:(?:https?|ftp)://|www\.)\S+", re.IGNORECASE)
# Limits the parser's work on a text that nests with every character.
_MAX_NESTING = 40


_LONGEST_LABEL = 1000
# The characters of which brackets consist, and those that begin what holds no bracket of a link.
_BRACKET = re.compile(r"[\[\]\\`<]")


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"maxNesting": _MAX_NESTING}).enable(["table", "strikethrough"])
    own = SimpleNamespace(
        parseLinkLabel=_label_end,
        parseLinkDestination=helpers.parseLinkDestination,
        parseLinkTitle=helpers.parseLinkTitle,
    )
    parser.helpers = cast(ModuleType, own)
    return parser


@dataclass(frozen=True, slots=True)
class SpokenLine:
    """One line as a reader sees it. Its source is line `first` of the text, or a later one before line `end`."""

    text: str
    first: int
    end: int


def spoken_lines(text: str) -> list[SpokenLine]:
    """Return the lines of `text` (split at "\\n") that address a reader, in order.

    Left out: code, block quotes, link texts and addresses, images, HTML comments (DESIGN.md §4, triggers).
    """
    found: list[SpokenLine] = []
    quoted = html_quoted = 0
    for token in _parser().parse(text):
        quoted += _SILENT_BLOCKS.get(token.type, 0)
        html_before = html_quoted
        if token.type == "html_block" and not quoted:
            for tag in _HTML_QUOTE.finditer(_HTML_COMMENT.sub("", token.content)):
                html_quoted = max(0, html_quoted + (-1 if tag.group(1) else 1))
        if quoted or html_before:
            continue
        if token.type == "inline":
            lines = "".join(_spoken_inline(token.children or [])).split("\n")
        elif token.type == "html_block":
            without_comments = _HTML_COMMENT.sub("", token.content)
            lines = _HTML_TAG.sub("", _SILENT_HTML.sub("", without_comments)).split("\n")
        else:
            continue
        start, end = token.map or (0, 0)
        found += [
            SpokenLine(_BARE_ADDRESS.sub(" ", line).strip(), start + index, end)
            for index, line in enumerate(lines)
            if line.strip()
        ]
    return found


def _label_end(state: StateInline, start: int, _no_link_inside: bool = False) -> int:
    """Return where the link's text that begins with the bracket at `start` ends, -1 if it does not.

    The parser's own function reads the rest of the paragraph for each bracket: seconds for a comment of brackets.
    This one reads a paragraph once. Against CommonMark, a link may hold a link (both are no speech), and no text is
    longer than a label may be (https://spec.commonmark.org/0.31.2/#link-label): the parser compares each with all.
    """
    ends = state.cache  # the parser keeps what its own function has read there
    if not ends:
        ends.update(_all_label_ends(state))
    end = ends.get(start, -1)
    return end if end < state.posMax and end - start <= _LONGEST_LABEL else -1


def _all_label_ends(state: StateInline) -> dict[int, int]:
    """Return the pairs of brackets of a paragraph; those in code, tags and addresses do not count."""
    begin, end = state.pos, state.posMax
    state.posMax = len(state.src)
    ends, opened, at = {-1: -1}, list[int](), 0
    while found := _BRACKET.search(state.src, at):
        at = state.pos = found.start()
        match found.group():
            case "[":
                opened.append(at)
            case "]":
                if opened:
                    ends[opened.pop()] = at
            case _:
                if any(rule(state, True) for rule in (escape, backtick, autolink, html_inline)):
                    at = state.pos - 1
        at += 1
    state.pos, state.posMax = begin, end
    return ends


def _spoken_inline(children: list[Token]) -> Iterator[str]:
    silent = 0
    for child in children:
        match child.type:
            case "link_open":
                silent += 1
            case "link_close":
                silent -= 1
            case "html_inline":
                if tag := _SILENT_INLINE_TAG.match(child.content):
                    silent = max(0, silent + (-1 if tag.group(1) else 1))
            case "text" if not silent:
                yield child.content
            case "softbreak" | "hardbreak":
                yield "\n"
            case _:
                # A space, so that the words around code or an image stay apart.
                yield " "
