"""Make the agent's Markdown harmless: it mentions no one, closes nothing, and links only to the GitHub server.

Code, prose, lists and links to the server stay as they are. What is changed reads the same. The
result is rendered by GitHub's own parser and looked at; what is still live there is shown as a block of code.
"""

import math
import re
import time
from collections.abc import Collection, Iterator
from urllib.parse import urlsplit

from bot.markdown import MENTION, MarkdownError, Node, attribute, is_block, runs, walk
from bot.thread.formatting import code_block
from bot.thread.marker import without_markers

WORD_JOINER = "\u2060"
FOLDS = frozenset(("details", "summary"))
_CAREFUL_PASSES = 3

# Time grows with the text alone: all that a pattern may take to the end of a text has a bound.
LONGEST_ADDRESS = 2048
_URL = rf"""(?:https?|ftp)(?=://)|(?:mailto|xmpp)(?=:[^\s<>`]{{0,{LONGEST_ADDRESS}}}@)|(?<![A-Za-z0-9])www(?=\.)"""
# A mention is not part of an e-mail address (https://docs.github.com/get-started/writing-on-github).
_AT = r"(?<![A-Za-z0-9])(?:@|&\#0*64;|&\#[xX]0*40;|&commat;)(?=[^\s\u2060])"
# https://docs.github.com/issues/tracking-your-work-with-issues/using-issues/linking-a-pull-request-to-an-issue
_KEYWORD = r"(?<![A-Za-z0-9])(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)"
_REPOSITORY = r"[\w.-]{1,100}/[\w.-]{1,100}"
_CLOSING = rf"""{_KEYWORD}
               (?=:?[\s*_~\[(<\\]{{0,200}}+(?:\#|&\#0*35;|&\#[xX]0*23;|&num;|GH-\d|{_REPOSITORY}\#|https?://))"""
_INLINE = re.compile(
    rf"""
    (?P<escape> \\[!-/:-?\[-`{{-~] )
  | (?P<code> (?P<ticks>`+)(?!`) .+? (?<!`)(?P=ticks)(?!`) )
  | (?P<other_ticks> `+ )
  | (?P<destination> \]\((?P<before>\s*)(?P<address><[^<>\n]*>|[^\s<>()`]*)(?=[\s)]) )
  | (?P<link> \]\( )
  | (?P<autolink> <(?:https?|ftp):[^\s<>]*> )
  | (?P<tag> <(?=[A-Za-z/!?]) )
  | (?P<url> {_URL} )
  | (?P<mention> {_AT} )
  | (?P<closing> {_CLOSING} )
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
# An address with all that may belong to it, and how far none that begins in it is looked at by itself.
_ADDRESS = re.compile(rf"(?P<one>[^\s<>`()\[\],;|\"']{{1,{LONGEST_ADDRESS}}})[^\s<>`]{{0,{LONGEST_ADDRESS}}}")
_NEVER_IN_ADDRESS = re.compile(r"[\x00-\x20\\]")
# The label of a link definition or a footnote, wherever one may stand.
_DEFINITION = re.compile(r"^((?:[ \t>]|[-+*][ \t]|\d{1,9}[.)][ \t])*\[(?:\\.|[^\[\]\\])*\]):", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"`{3,}|~{3,}")
_TICKS = re.compile(r"(?<!\\)`")
_CLOSING_SHOWN = re.compile(rf"{_KEYWORD}:?\s*+(?:\#\d|GH-\d|{_REPOSITORY}\#\d|https?://)", re.IGNORECASE)
_TAG_AT_LINE_START = re.compile(r"(\n[ \t>]*)<(?=[A-Za-z/!?])")
_CELL_BORDER = re.compile(r"((?<!\\)\|)")
# What cmark-gfm makes of Markdown.
_MARKDOWN = re.compile(
    "a|blockquote|br|code|del|em|h[1-6r]|img|input|li|ol|p|pre|section|strong|sup|table|tbody|t[dhr]|thead|ul"
)


class TooSlowError(Exception):
    """A text takes longer than any that was thought of."""


def sanitize(markdown: str, server_url: str, until: float = math.inf) -> str:
    """Return the text for a comment; links may lead to `server_url` only. Text that resists becomes one code block.

    Its lines end in "\\n" only. Raises TooSlowError once the thread has had `until` seconds of the processor.
    """
    host = host_of(server_url)
    markdown = without_markers(markdown)
    for attempt in range(_CAREFUL_PASSES + 1):
        markdown = _pass(markdown, host, until, with_spans=attempt < _CAREFUL_PASSES)
        if is_inert(markdown, host):
            return markdown
    return code_block(markdown, "text")


def host_of(server_url: str) -> str:
    """Return the only host that links may lead to."""
    return urlsplit(server_url).netloc.lower()


def is_inert(markdown: str, host: str, html: Collection[str] = ()) -> bool:
    """Return whether nothing on its page is live: no mention, closing word, link or image elsewhere, no raw HTML.

    `html` are the elements that may stand there as raw HTML.
    """
    try:
        return not any(
            _is_live(node, host, html) for node, begins in walk(markdown, raw=bool(html)) if begins
        ) and not any(MENTION.search(words) or _CLOSING_SHOWN.search(words) for words in _words(markdown))
    except MarkdownError:
        return False


def _is_live(node: Node, host: str, html: Collection[str]) -> bool:
    match node.tag:
        case "-text":
            return False
        case "a":
            address = attribute(node, "href")
            is_mail = address == f"mailto:{node.text()}"
            return not (is_mail or (address and _allowed(address, host)))
        case "img":
            return not _allowed(attribute(node, "src"), host)
        case tag:
            return tag not in html and not _MARKDOWN.fullmatch(tag or "")


def _words(markdown: str) -> Iterator[str]:
    """Yield what the blocks of the page say outside of code, and each text in them, as GitHub looks for mentions."""
    words, code = list[str](), 0
    for node, begins in walk(markdown):
        if node.is_text_node:
            words.append("\0" if code else node.text_content or "")
            yield words[-1]
        elif node.tag == "code":
            code += 1 if begins else -1
        elif is_block(node) or node.tag == "br":
            yield "".join(words)
            words.clear()
    yield "".join(words)


def closed(markdown: str) -> str:
    """Close a code fence that is still open at the end: what follows the text would be code, and code in it text."""
    fence = _open_fence(markdown)
    if fence is None:
        return markdown
    ended = f"{markdown}\n{fence}"
    return ended if _open_fence(ended) is None else code_block(markdown, "text")  # it is in a list or a footnote


def _open_fence(markdown: str) -> str | None:
    """Return the marks of the code that goes on below the text, None where none does."""
    *_, (text, tag) = runs(f"{markdown}\n\n.")
    if tag != "pre":
        return None
    fence = _FENCE.search(text.partition("\n")[0])
    return fence[0] if fence else ""


def _pass(markdown: str, host: str, until: float, *, with_spans: bool) -> str:
    """Go over the text once. `with_spans`: spans of code stay code, as far as this module finds them."""
    safe: list[str] = []
    for text, tag in runs(markdown):
        if tag == "pre":
            safe.append(text)
            continue
        broken = _DEFINITION.sub(r"\1\\:", text)
        pieces = _CELL_BORDER.split(broken) if tag in ("td", "th", "tr") else [broken]
        safe.append("".join(_inline(piece, host, until, with_spans=with_spans and tag != "") for piece in pieces))
    return "\n".join(safe)


def _inline(text: str, host: str, until: float, *, with_spans: bool) -> str:
    """Return inline Markdown made harmless, outside of spans of code where they stay."""
    if not with_spans:
        text = _TICKS.sub(r"\\\g<0>", text)
    out: list[str] = []
    position = elsewhere = 0  # `elsewhere`: the end of an address that leads there
    while (found := _INLINE.search(text, position)) is not None:
        if time.thread_time() > until:
            raise TooSlowError
        out.append(text[position : found.start()])
        position = found.end()
        match found.lastgroup:
            case "code" | "ticks":
                out.append(_TAG_AT_LINE_START.sub(r"\1&lt;", found[0]))
            case "destination":
                is_allowed = _allowed(found["address"].strip("<>"), host)
                out.append(found[0] if is_allowed else "] (")
                position = found.end() if is_allowed else found.start("before")
            case "link":
                out.append("] (")
            case "autolink" if _allowed(found[0][1:-1], host):
                out.append(found[0])
            case "autolink" | "tag":
                out.append("&lt;")
                position = found.start() + 1
            case "url":
                address = None if found.start() < elsewhere else _ADDRESS.match(text, found.start())
                if address and _allowed(url := _without_trailing_punctuation(address[0]), host):
                    out.append(url)
                    position = found.start() + len(url)
                else:
                    out.append(found[0] + (WORD_JOINER if found[0].lower() == "www" else "\\"))
                    elsewhere = address.end("one") if address else elsewhere
            case "mention" | "closing":
                out.append(found[0] + WORD_JOINER)
            case _:
                out.append(found[0])
    out.append(text[position:])
    return "".join(out)


def _without_trailing_punctuation(url: str) -> str:
    """Return a bare URL as GitHub ends it (https://github.github.com/gfm/#autolinks-extension-)."""
    end, surplus = len(url), url.count(")") - url.count("(")
    while end and (url[end - 1] in "?!.,:;*_~'\"" or (url[end - 1] == ")" and surplus > 0)):
        surplus -= url[end - 1] == ")"
        end -= 1
    return url[:end]


def _allowed(href: str, host: str) -> bool:
    """Return whether a link stays on the GitHub server: it is relative, or has exactly its host."""
    if _NEVER_IN_ADDRESS.search(href):
        return False
    try:
        parts = urlsplit(href)
    except ValueError:
        return False
    if not parts.scheme and not parts.netloc:
        return not href.lower().startswith("www.")
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host
