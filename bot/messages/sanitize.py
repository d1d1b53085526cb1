"""Make the agent's Markdown harmless: it mentions no one, closes nothing, and links only to the GitHub server.

Code, prose, lists and links to the server stay as they are. What is changed reads the same or is shown as code.
"""

import re
from collections.abc import Iterator
from functools import cache
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.helpers import parseLinkDestination
from markdown_it.token import Token
from markdown_it.utils import EnvType

from bot.messages.formatting import code_block
from bot.messages.marker import without_markers

WORD_JOINER = "\u2060"
_MOST_PASSES = 3

_URL = r"(?:https?|ftp)://[^\s<>`]+|(?<![A-Za-z0-9])www\.[^\s<>`]+"
# A mention is not part of an e-mail address (https://docs.github.com/get-started/writing-on-github).
_AT = r"(?<![A-Za-z0-9])(?:@|&\#0*64;|&\#[xX]0*40;|&commat;)(?=[^\s\u2060])"
# https://docs.github.com/issues/tracking-your-work-with-issues/using-issues/linking-a-pull-request-to-an-issue
_CLOSING = r"""(?<![A-Za-z0-9])(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)
               (?=:?[\s*_~\[(<\\]*(?:\#|&\#0*35;|&\#[xX]0*23;|&num;|GH-\d|[\w.-]+/[\w.-]+\#|https?://))"""
_INLINE = re.compile(
    rf"""
    (?P<escape> \\[!-/:-?\[-`{{-~] )
  | (?P<code> (?P<ticks>`+)(?!`) .+? (?<!`)(?P=ticks)(?!`) )
  | (?P<ticks_alone> `+ )
  | (?P<destination> \]\( )
  | (?P<autolink> <(?:https?|ftp):[^\s<>]*> )
  | (?P<tag> <(?=[A-Za-z/!?]) )
  | (?P<url> {_URL} )
  | (?P<mention> {_AT} )
  | (?P<closing> {_CLOSING} )
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_URL_ALONE = re.compile(_URL, re.IGNORECASE)
_MENTION_SHOWN = re.compile(r"(?<![A-Za-z0-9])@[A-Za-z0-9]")
_TAG_AT_LINE_START = re.compile(r"(\n[ \t>]*)<(?=[A-Za-z/!?])")
_CELL_BORDER = re.compile(r"((?<!\\)\|)")


def sanitize(markdown: str, server_url: str) -> str:
    """Return the text for a comment; links may lead to `server_url` only. Text that resists becomes one code block.

    Its lines end in "\\n" only.
    """
    host = urlsplit(server_url).netloc.lower()
    markdown = without_markers(markdown)
    for _ in range(_MOST_PASSES):
        markdown = _pass(markdown, host)
        if is_sanitized(markdown, host):
            return markdown
    return code_block(markdown, "text")


def is_sanitized(markdown: str, host: str) -> bool:
    """Return whether nothing in it is live when rendered: raw HTML, foreign links and images, bare URLs, mentions."""
    for token in _flat(_parser().parse(markdown)):
        match token.type:
            case "html_block" | "html_inline":
                return False
            case "link_open":
                if not _allowed(str(token.attrs.get("href", "")), host):
                    return False
            case "image":
                if not _allowed(str(token.attrs.get("src", "")), host):
                    return False
            case "text":
                text = _URL_ALONE.sub(lambda url: "" if _allowed(url[0], host) else url[0], token.content)
                if _URL_ALONE.search(text) or _MENTION_SHOWN.search(text):
                    return False
            case _:
                pass
    return True


def code_lines(markdown: str) -> frozenset[int]:
    """Return the numbers of the lines that are code, from 0."""
    tokens = (token for token in _blocks().parse(markdown) if token.type in ("fence", "code_block"))
    return frozenset(number for token in tokens for number in range(*(token.map or (0, 0))))


def closed(markdown: str) -> str:
    """Close a code fence that is still open at the end: what follows the text would be code, and code in it text."""
    last = _blocks().parse(f"{markdown}\n\n.")[-1]
    return f"{markdown}\n{last.markup}" if last.type == "fence" else markdown


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


@cache
def _blocks() -> MarkdownIt:
    """Return a parser that finds blocks and link definitions, but does not read the text inside."""
    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("inline")


def _flat(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _flat(token.children or [])


def _pass(markdown: str, host: str) -> str:
    """Walk over the blocks once. Raw HTML is read as text, which is what it becomes."""
    env: EnvType = {}
    tokens = _blocks().parse(markdown, env)
    lines = markdown.split("\n")
    _break_definitions(lines, env, host)
    spans = sorted(_spans(tokens, len(lines)))
    safe: list[str] = []
    for begin, end, kind in spans:
        block = lines[begin:end]
        match kind:
            case "code":
                safe += block
            case "table":
                safe += ["".join(_inline(cell, host) for cell in _CELL_BORDER.split(line)) for line in block]
            case _:
                safe += _inline("\n".join(block), host).split("\n")
    return "\n".join(safe)


def _spans(tokens: list[Token], count: int) -> Iterator[tuple[int, int, str]]:
    """Return line ranges that cover the text: code, tables and inline text. Lines in no token are text as well."""
    kinds = {"fence": "code", "code_block": "code", "table_open": "table", "inline": "text"}
    done = 0
    for token in tokens:
        if token.type not in kinds or token.map is None:
            continue
        begin, end = token.map
        if begin < done:
            continue  # a cell of a table that is covered already
        for between in range(done, begin):
            yield between, between + 1, "text"
        yield begin, end, kinds[token.type]
        done = max(done, end)
    for between in range(done, count):
        yield between, between + 1, "text"


def _break_definitions(lines: list[str], env: EnvType, host: str) -> None:
    """Break the link definitions that lead elsewhere, and those of words that begin with `!`.

    `[!NOTE]: x` would make a link of the first line of a box, which would be a box no more.
    """
    named = [*env.get("references", {}).items(), *((one["label"], one) for one in env.get("duplicate_refs", []))]
    for label, definition in named:
        if _allowed(definition["href"], host) and not label.strip().startswith("!"):
            continue
        for number in range(*definition["map"]):
            lines[number] = lines[number].replace("]:", "] :")


def _inline(text: str, host: str) -> str:
    """Return inline Markdown made harmless outside of code; code spans are found as CommonMark finds them."""
    ticks = _free_ticks(text)
    out: list[str] = []
    position = 0
    while (found := _INLINE.search(text, position)) is not None:
        out.append(text[position : found.start()])
        position = found.end()
        match found.lastgroup:
            case "code" | "ticks":
                out.append(_TAG_AT_LINE_START.sub(r"\1&lt;", found[0]))
            case "destination":
                position = _destination_end(text, position, host)
                out.append("] (" if position == found.end() else text[found.start() : position])
            case "autolink":
                url = found[0][1:-1]
                out.append(
                    found[0] if _allowed(url, host) and "`" not in url else _as_span(url, ticks, out, text, position)
                )
            case "tag":
                out.append("&lt;")
            case "url":
                url = _without_trailing_punctuation(found[0])
                position = found.start() + len(url)
                out.append(url if _allowed(url, host) else _as_span(url, ticks, out, text, position))
            case "mention" | "closing":
                out.append(found[0] + WORD_JOINER)
            case _:
                out.append(found[0])
    out.append(text[position:])
    return "".join(out)


def _destination_end(text: str, start: int, host: str) -> int:
    """Return where a link's destination ends if it leads to the server, or `start` if the link must be broken."""
    begin = len(text) - len(text[start:].lstrip())
    destination = parseLinkDestination(text, begin, len(text))
    if not destination.ok or "`" in text[begin : destination.pos] or not _allowed(destination.str, host):
        return start
    return max(destination.pos, start + 1) if destination.pos > start else start


def _free_ticks(text: str) -> str:
    """Return a run of backticks of a length that no lone run in this text has."""
    alone = {len(found[0]) for found in _INLINE.finditer(text) if found.lastgroup == "ticks_alone"}
    return next("`" * count for count in range(1, len(text) + 3) if count not in alone)


def _as_span(url: str, ticks: str, before: list[str], text: str, position: int) -> str:
    """Return the URL as a code span that does not run into its neighbours' backticks."""
    written = next((piece for piece in reversed(before) if piece), "")
    left = " " if written.endswith("`") else ""
    right = " " if text[position : position + 1] == "`" else ""
    return f"{left}{ticks}{url}{ticks}{right}"


def _without_trailing_punctuation(url: str) -> str:
    """Return a bare URL as GitHub ends it (https://github.github.com/gfm/#autolinks-extension-)."""
    while url and (url[-1] in "?!.,:;*_~'\"" or (url[-1] == ")" and url.count(")") > url.count("("))):
        url = url[:-1]
    return url


def _allowed(href: str, host: str) -> bool:
    """Return whether a link stays on the GitHub server: it is relative, or has exactly its host."""
    if "\\" in href or any(ord(character) <= 0x20 for character in href):
        return False
    try:
        parts = urlsplit(href)
    except ValueError:
        return False
    if not parts.scheme and not parts.netloc:
        return not href.lower().startswith("www.")
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host
