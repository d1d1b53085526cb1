"""Removal of what a reader of GitHub's page does not see: a stranger could hide instructions in it. Pure."""

import html
import re
import unicodedata
from functools import cache

from markdown_it import MarkdownIt

# A text of one character per nesting level must not cost the parser more than this.
_MAX_NESTING = 40
# Comments, also one that is never closed: browsers hide everything after it.
_COMMENT = r"<!--.*?(?:-->|\Z)"
# CDATA sections, processing instructions and declarations are not shown either.
_DECLARATION = r"<\?.*?\?>|<!\[CDATA\[.*?\]\]>|<![A-Za-z][^>]*>"
_UNSEEN = re.compile(f"{_COMMENT}|{_DECLARATION}", re.DOTALL)
_CODE_SPAN_OR_UNSEEN = re.compile(f"(?<!`)(`+)(?!`)(?P<code>.+?)(?<!`)\\1(?!`)|{_COMMENT}|{_DECLARATION}", re.DOTALL)
# Elements that GitHub's sanitizer removes with their content or shows nothing of:
# https://github.com/gjtorikian/html-pipeline/blob/main/lib/html_pipeline/sanitization_filter.rb
_REMOVED_ELEMENT = re.compile(
    r"<(script|style|template|noscript|iframe|object|embed|svg|math|head|title|textarea|xmp|plaintext)\b[^>]*>"
    r".*?(?:</\1\s*>|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_HIDING = re.compile(
    r"\shidden(?=[\s=>/])"
    r"|aria-hidden\s*=\s*[\"']?true"
    r"|style\s*=\s*[\"'][^\"']*(?:display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0|opacity\s*:\s*0)",
    re.IGNORECASE,
)
_OPENING_TAG = re.compile(r"<([A-Za-z][\w-]*)((?:\s[^<>]*)?)>")
# A tag keeps an address that a reader can follow. The rest of it (alt, title, data-…) is not shown.
_KEPT_ATTRIBUTE = re.compile(r"\s(href|src)\s*=\s*(\"[^\"]*\"|'[^']*'|[^\s\"'>]+)", re.IGNORECASE)
# `[//]: # (a comment)` is shown nowhere. The title may stand on the next line.
_LINK_DEFINITION = re.compile(r"^ {0,3}\[[^\]\n]+\]:[ \t]*\n?[^\n]*(?:\n[ \t]+[\"'(][^\n]*)?$", re.MULTILINE)
# The title of a link and the text in place of an image are shown on hovering or not at all.
_LINK_TITLE = re.compile(r"(\]\([^()\s]+)\s+(?:\"[^\"]*\"|'[^']*'|\([^()]*\))\s*\)")
_IMAGE_TEXT = re.compile(r"!\[[^\]]*\]([(\[])")
_ENTITY = re.compile(r"&(?:#[0-9]{1,8}|#[xX][0-9a-fA-F]{1,8}|[A-Za-z][A-Za-z0-9]{1,31});")

_KEPT_CONTROLS = frozenset("\n\t")
# Drawn as nothing though Unicode calls them letters or marks: fillers of Hangul and Khmer, the blank Braille pattern.
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
# Private-use characters, which no text has once the invisible ones are gone, hold the places of code.
_CODE_BEGIN, _CODE_END = "\ue000", "\ue001"
_CODE_PLACE = re.compile(f"{_CODE_BEGIN}([0-9]+){_CODE_END}")


@cache
def markdown_parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"maxNesting": _MAX_NESTING}).enable(["table", "strikethrough"])


def strip_hidden(text: str) -> str:
    """Return `text` as a reader sees it: no comments, invisible characters, hidden elements or attributes.

    Code stays as it is written, without its invisible characters.
    """
    text = drop_invisible(text.replace("\r\n", "\n").replace("\r", "\n"))
    text = _ENTITY.sub(lambda entity: "" if not drop_invisible(html.unescape(entity.group())) else entity.group(), text)
    code: list[str] = []
    text = _set_code_aside(text, code)
    previous = None
    # What one pass removes may join the halves of what the next one sees.
    while previous != text:
        previous = text
        text = _without_hidden_elements(_REMOVED_ELEMENT.sub("", _UNSEEN.sub("", text)))
    text = _OPENING_TAG.sub(_visible_tag, text)
    text = _IMAGE_TEXT.sub(r"![]\1", _LINK_TITLE.sub(r"\1)", _LINK_DEFINITION.sub("", text)))
    text = re.sub(r"\n{3,}", "\n\n", text)
    return _CODE_PLACE.sub(lambda place: code[int(place.group(1))], text).strip("\n ")


def drop_invisible(text: str) -> str:
    """Return `text` without format characters (zero width, bidi, tags), variation selectors, controls and blanks."""
    return "".join(character for character in text if not _is_invisible(character))


def _is_invisible(character: str) -> bool:
    if character in _KEPT_CONTROLS:
        return False
    if character in _BLANKS or "\ufe00" <= character <= "\ufe0f" or "\U000e0000" <= character <= "\U000e0fff":
        return True
    return unicodedata.category(character) in _INVISIBLE_CATEGORIES


def _set_code_aside(text: str, code: list[str]) -> str:
    """Replace blocks and spans of code by their places in `code`. In a block of HTML there are no spans of code."""

    def place(source: str) -> str:
        code.append(source)
        return f"{_CODE_BEGIN}{len(code) - 1}{_CODE_END}"

    def span_or_nothing(found: re.Match[str]) -> str:
        return place(found.group()) if found.group("code") is not None else ""

    lines = text.split("\n")
    kept: list[str] = []
    markdown: list[str] = []
    blocks = {token.map[0]: token for token in markdown_parser().parse(text) if token.map and token.type in _VERBATIM}
    at = 0
    while at <= len(lines):
        block = blocks.get(at)
        if (block is not None or at == len(lines)) and markdown:
            kept.append(_CODE_SPAN_OR_UNSEEN.sub(span_or_nothing, "\n".join(markdown)))
            markdown = []
        if block is not None and block.map and block.map[1] > at:
            source = "\n".join(lines[at : block.map[1]])
            kept.append(source if block.type == "html_block" else place(source))
            at = block.map[1]
            continue
        if at < len(lines):
            markdown.append(lines[at])
        at += 1
    return "\n".join(kept)


_VERBATIM = frozenset({"fence", "code_block", "html_block"})


def _without_hidden_elements(text: str) -> str:
    """Drop each element with an attribute that hides it, with all that it holds; an unclosed one to the end."""
    kept, at = [], 0
    for tag in _OPENING_TAG.finditer(text):
        if tag.start() >= at and _HIDING.search(tag.group(2) + ">"):
            kept.append(text[at : tag.start()])
            at = _end_of_element(text, tag)
    return "".join([*kept, text[at:]])


def _end_of_element(text: str, tag: re.Match[str]) -> int:
    depth = 1
    same = re.compile(rf"<(/?){re.escape(tag.group(1))}\b[^<>]*>", re.IGNORECASE)
    for other in same.finditer(text, tag.end()):
        depth += -1 if other.group(1) else 1
        if depth == 0:
            return other.end()
    return len(text)


def _visible_tag(tag: re.Match[str]) -> str:
    kept = "".join(f" {name.lower()}={value}" for name, value in _KEPT_ATTRIBUTE.findall(tag.group(2)))
    return f"<{tag.group(1)}{kept}>"
