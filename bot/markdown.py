"""The page that GitHub shows of a Markdown text: its own parser cmark-gfm, then an HTML parser like a browser's. Pure.

The wheel `cmarkgfm` brings the library. Its C interface is called directly, for two reasons: the wheel's Python
functions never free what they allocate (a megabyte for 16 KB of text), and cmark-gfm keeps tables in static memory, so
two threads may not parse at once (PyDLL keeps the interpreter's lock during a call).
https://github.com/github/cmark-gfm/blob/master/src/cmark-gfm.h
"""

import ctypes
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec

from selectolax.lexbor import LexborHTMLParser, LexborNode

# CMARK_OPT_SOURCEPOS, CMARK_OPT_GITHUB_PRE_LANG, CMARK_OPT_FOOTNOTES
_OPTIONS = 1 << 1 | 1 << 11 | 1 << 13
# CMARK_OPT_UNSAFE: raw HTML is passed on, as GitHub does before it cleans it.
_RAW = 1 << 17
_EXTENSIONS = (b"table", b"autolink", b"strikethrough", b"tasklist")
# The HTML parser takes time in proportion to the depth of each tag, so what is deeper is not read.
_DEEPEST = 1000
_TAG = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9-]*)")
_NEVER_DEEPER = re.compile(r"p|li|t[dhr]|[bh]r|img|input|d[dt]|option", re.IGNORECASE)

# GitHub removes these with their content, or shows nothing of them:
# https://github.com/gjtorikian/html-pipeline/blob/main/lib/html_pipeline/sanitization_filter.rb
_REMOVED = re.compile(
    "script|style|template|noscript|noembed|noframes|iframe|object|embed|svg|math|head|title|textarea|select|xmp|"
    "plaintext|audio|video|canvas"
)
# What begins on a line of its own; any other element is part of a line, also one that HTML does not know.
_BLOCK = re.compile(
    "address|article|aside|blockquote|center|d[dlt]|details|div|fieldset|figcaption|figure|footer|form|h[1-6r]|header|"
    "li|main|nav|ol|p|pre|section|summary|table|tbody|t[dhr]|thead|ul"
)
_HIDING_STYLE = re.compile(
    r"display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0|opacity\s*:\s*0", re.IGNORECASE
)
_POSITION = re.compile(r"([1-9][0-9]{0,6}):[0-9]{1,7}-([0-9]{1,7}):[0-9]{1,7}")

# A mention as GitHub links it: letters of other scripts may touch it. One grammar for what comes in and what goes out.
BEFORE_MENTION = r"(?<![0-9A-Za-z_])"
MENTION = re.compile(rf"{BEFORE_MENTION}@(?=[0-9A-Za-z])")

Node = LexborNode


class MarkdownError(Exception):
    """A parser failed on a text."""


def walk(text: str, *, raw: bool = True) -> Iterator[tuple[Node, bool]]:
    """Yield each node of the page where it begins (True), and each element also where it ends (False), in order.

    `raw=False`: raw HTML is a comment that says so. Raises MarkdownError.
    """
    try:
        tree = LexborHTMLParser(_not_too_deep(to_html(text, raw=raw)), is_fragment=True)
        node = tree.root
    except Exception as problem:
        raise MarkdownError(f"{type(problem).__name__}: {problem}") from problem
    inside: list[Node] = []
    while node is not None or inside:
        if node is None:
            node = inside.pop()
            yield node, False
            node = node.next
            continue
        yield node, True
        if node.is_element_node:
            inside.append(node)
            node = node.child
        else:
            node = node.next


def walk_visible(text: str) -> Iterator[tuple[Node, bool]]:
    """Yield what a reader of the page sees: as `walk`, without comments and hidden elements."""
    hidden = 0
    for node, begins in walk(text):
        if node.is_comment_node:
            continue
        if node.is_element_node and (hidden or _is_hidden(node)):
            hidden += 1 if begins else -1
        elif not hidden:
            yield node, begins


def attribute(node: Node, name: str) -> str:
    """Return the value of an element's attribute, empty where it has none."""
    value: str | None = node.attributes.get(name)
    return value or ""


def block_lines(node: Node) -> tuple[int, int] | None:
    """Return the lines of one of Markdown's blocks: the first, from 0, and the one after the last.

    Raw HTML may claim any lines.
    """
    found = _POSITION.fullmatch(attribute(node, "data-sourcepos"))
    return (int(found[1]) - 1, int(found[2])) if found else None


def line_blocks(text: str) -> dict[int, tuple[str, int]]:
    """Return for each line the innermost block that it belongs to: its tag, and the number of the block.

    Raw HTML is read as text. Nothing is found in a text that no parser reads.
    """
    found: dict[int, tuple[str, int]] = {}
    with suppress(MarkdownError):
        for number, (node, begins) in enumerate(walk(text.replace("<", "("))):
            if begins and (lines := block_lines(node)) is not None:
                found |= dict.fromkeys(range(*lines), (node.tag or "", number))
    return found


def runs(text: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of each block as one text, with its tag; a line outside of all blocks by itself, with none."""
    lines, blocks = text.split("\n"), line_blocks(text)
    begin = 0
    for number in range(1, len(lines) + 1):
        block = blocks.get(begin)
        if number == len(lines) or block is None or blocks.get(number) != block:
            yield "\n".join(lines[begin:number]), block[0] if block else ""
            begin = number


def mention_of(name: str) -> re.Pattern[str]:
    """Return the pattern of `@name`: no part of a longer login, an address or a team. The name is data, no pattern."""
    ends = r"(?![0-9A-Za-z_-]|/[0-9A-Za-z])"
    return re.compile(rf"{BEFORE_MENTION}@{re.escape(name)}(?:\[bot\])?{ends}", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class PageLine:
    """One line as a reader sees it. Its source is line `first` of the text, or a later one before line `end`."""

    text: str
    first: int
    end: int


def page_lines(text: str, is_silent: Callable[[Node], bool] | None = None, *, rows: bool = False) -> list[PageLine]:
    """Return the lines of the page, in order, without what `is_silent` says. Raises MarkdownError.

    `text` has its lines split at "\\n". `rows`: a row of a table is one line, not one for each cell.
    """
    reading = _PageReader(text.count("\n") + 1, is_silent, rows=rows)
    for node, begins in walk_visible(text):
        reading.read(node, begins)
    reading.end_line()
    return reading.lines


class _PageReader:
    """A walk over the page: the line being read, where its source is, and how many silent elements are around it."""

    def __init__(self, count: int, is_silent: Callable[[Node], bool] | None, *, rows: bool) -> None:
        self.lines: list[PageLine] = []
        self._count, self._is_silent, self._rows = count, is_silent, rows
        self._line: list[str] = []
        self._silent = 0
        # The lines of the blocks around, innermost last: where the next line is at the earliest, and where each ends.
        # Raw HTML has no position: its lines come after the last block.
        self._at, self._ends = 0, [count]

    def read(self, node: Node, begins: bool) -> None:
        if node.is_text_node:
            # Between the cells of a row is nothing to read.
            if not (self._rows and node.parent is not None and node.parent.tag == "tr"):
                self._read_text(node.text_content or "")
            return
        if self._rows and node.tag in ("td", "th"):
            self._line.append(" ")
            return
        silent = self._is_silent is not None and self._is_silent(node)
        if is_block(node) or node.tag == "br":
            self.end_line()
        elif silent:
            self._line.append(" ")
        elif node.tag == "img" and begins:
            self._line.append(attribute(node, "alt"))
        if silent:
            self._silent += 1 if begins else -1
        if (lines := block_lines(node)) is None:
            return
        if begins:
            self._at = min(lines[0], self._count - 1)
            self._ends.append(min(lines[1], self._count))
        else:
            self._at = self._ends.pop()

    def _read_text(self, text: str) -> None:
        for index, words in enumerate(text.split("\n")):
            if index:
                self.end_line()
                self._at += len(self._ends) > 1
            if not self._silent:
                self._line.append(words)

    def end_line(self) -> None:
        """End the line that is being read."""
        if text := "".join(self._line).strip():
            self.lines.append(PageLine(text, self._at, self._ends[-1]))
        self._line.clear()


def is_block(node: Node) -> bool:
    """Return whether the element begins and ends a line of the page."""
    return _BLOCK.fullmatch(node.tag or "") is not None


def _is_hidden(node: Node) -> bool:
    if _REMOVED.fullmatch(node.tag or ""):
        return True
    attributes = node.attributes
    return (
        "hidden" in attributes
        or (attributes.get("aria-hidden") or "").strip().lower() == "true"
        or _HIDING_STYLE.search(attributes.get("style") or "") is not None
    )


def to_html(text: str, *, raw: bool = True) -> str:
    """Return the HTML that cmark-gfm makes of the text; raw HTML stays in it as it is written, or becomes a comment."""
    options = _OPTIONS | (_RAW if raw else 0)
    source, lib = text.encode("utf-8", "replace"), _library()
    parser = lib.cmark_parser_new(options)
    document = rendered = None
    try:
        for name in _EXTENSIONS:
            lib.cmark_parser_attach_syntax_extension(parser, lib.cmark_find_syntax_extension(name))
        lib.cmark_parser_feed(parser, source, len(source))
        document = lib.cmark_parser_finish(parser)
        rendered = lib.cmark_render_html(document, options, lib.cmark_parser_get_syntax_extensions(parser))
        return ctypes.string_at(rendered).decode("utf-8", "replace")
    finally:
        lib.free(rendered)
        if document is not None:
            lib.cmark_node_free(document)
        lib.cmark_parser_free(parser)


@cache
def _library() -> ctypes.PyDLL:
    # Without an import of the package: a thread that meets another's half-done import is refused.
    package = find_spec("cmarkgfm")
    found = PathFinder.find_spec("cmarkgfm._cmark", package.submodule_search_locations) if package else None
    if found is None or found.origin is None:
        raise MarkdownError("the package cmarkgfm has no library")
    lib = ctypes.PyDLL(found.origin)
    pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    for name, result, arguments in (
        ("cmark_gfm_core_extensions_ensure_registered", None, ()),
        ("cmark_find_syntax_extension", pointer, (ctypes.c_char_p,)),
        ("cmark_parser_new", pointer, (number,)),
        ("cmark_parser_attach_syntax_extension", number, (pointer, pointer)),
        ("cmark_parser_get_syntax_extensions", pointer, (pointer,)),
        ("cmark_parser_feed", None, (pointer, ctypes.c_char_p, size)),
        ("cmark_parser_finish", pointer, (pointer,)),
        ("cmark_render_html", pointer, (pointer, number, pointer)),
        ("cmark_node_free", None, (pointer,)),
        ("cmark_parser_free", None, (pointer,)),
        ("free", None, (pointer,)),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    lib.cmark_gfm_core_extensions_ensure_registered()
    return lib


def _not_too_deep(html: str) -> str:
    """Return the HTML without what is nested too deep, so that what comes after it is read."""
    kept, depth, at, skipped_from = list[str](), 0, 0, -1
    for tag in _TAG.finditer(html):
        if _NEVER_DEEPER.fullmatch(tag[2]):
            continue
        depth += -1 if tag[1] else 1
        if depth > _DEEPEST and skipped_from < 0:
            skipped_from = tag.start()
            kept.append(html[at:skipped_from])
        elif depth == _DEEPEST and skipped_from >= 0:
            at, skipped_from = html.find(">", tag.end()) + 1 or len(html), -1
    return "".join(kept) + ("" if skipped_from >= 0 else html[at:])
