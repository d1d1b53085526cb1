"""Removal of what a reader of GitHub's page does not see: a stranger could hide instructions in it. Pure."""

import html
import re
import unicodedata
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

# A text of one character per nesting level must not cost the parser more than this.
_MAX_NESTING = 40
# Comments, processing instructions, CDATA sections and declarations are not shown; code is.
_OPENING = re.compile(r"<!--|<\?|<!\[CDATA\[|<!(?=[A-Za-z])|`+")
_CLOSINGS = {"<!--": "-->", "<?": "?>", "<![CDATA[": "]]>", "<!": ">"}
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
# It matches at every beginning, also of what is no image: so the text is read once.
_IMAGE_TEXT = re.compile(r"!\[[^\]]*(?:\](?P<target>[(\[])?|\Z)")
_ENTITY = re.compile(r"&(?:#[0-9]{1,8}|#[xX][0-9a-fA-F]{1,8}|[A-Za-z][A-Za-z0-9]{1,31});")

_KEPT_CONTROLS = frozenset("\n\t")
# Drawn as nothing though Unicode calls them letters or marks: fillers of Hangul and Khmer, the blank Braille pattern.
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
# Private-use characters, which no text has once the invisible ones are gone, hold the places of code.
_CODE_BEGIN, _CODE_END = "\ue000", "\ue001"
_CODE_PLACE = re.compile(f"{_CODE_BEGIN}([0-9]+){_CODE_END}")


@cache
def _parser() -> MarkdownIt:
    # What stands within a line is not parsed: a text of brackets would cost seconds.
    parser = MarkdownIt("commonmark", {"maxNesting": _MAX_NESTING}).enable("table")
    parser.core.ruler.disable(["inline", "text_join"])
    return parser


def markdown_blocks(text: str) -> list[Token]:
    """Return the blocks of a Markdown text; what stands in their lines is in the content of `inline` tokens."""
    return _parser().parse(text)


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
        text = _without_hidden_elements(_REMOVED_ELEMENT.sub("", _drop_unseen(text)))
    text = _OPENING_TAG.sub(_visible_tag, text)
    text = _IMAGE_TEXT.sub(_image_without_text, _LINK_TITLE.sub(r"\1)", _LINK_DEFINITION.sub("", text)))
    text = re.sub(r"\n{3,}", "\n\n", text)
    return _CODE_PLACE.sub(lambda place: code[int(place.group(1))], text).strip("\n ")


def drop_code(text: str) -> str:
    """Return the text of a block without its spans of code."""
    return _CODE_PLACE.sub("", _drop_unseen(text, []))


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
    lines = text.split("\n")
    kept: list[str] = []
    markdown: list[str] = []
    blocks = {token.map[0]: token for token in markdown_blocks(text) if token.map and token.type in _VERBATIM}
    at = 0
    while at <= len(lines):
        block = blocks.get(at)
        if (block is not None or at == len(lines)) and markdown:
            kept.append(_drop_unseen("\n".join(markdown), code))
            markdown = []
        if block is not None and block.map and block.map[1] > at:
            source = "\n".join(lines[at : block.map[1]])
            kept.append(source if block.type == "html_block" else _place(source, code))
            at = block.map[1]
            continue
        if at < len(lines):
            markdown.append(lines[at])
        at += 1
    return "\n".join(kept)


def _place(source: str, code: list[str]) -> str:
    code.append(source)
    return f"{_CODE_BEGIN}{len(code) - 1}{_CODE_END}"


def _drop_unseen(text: str, code: list[str] | None = None) -> str:
    """Return the text without comments and the like; with `code`, spans of code go there first.

    A comment that is never closed hides the rest, as in a browser. Takes time in proportion to the text: what has no
    end is looked for once.
    """
    kept, at, endless = list[str](), 0, set[str]()
    for opening in _OPENING.finditer(text):
        mark, is_code = opening.group(), opening.group().startswith("`")
        if opening.start() < at or mark in endless or (is_code and code is None):
            continue
        closing = re.compile(rf"(?<!`){mark}(?!`)" if is_code else re.escape(_CLOSINGS[mark]))
        end = closing.search(text, opening.end())
        if end is None and mark != "<!--":
            endless.add(mark)
            continue
        kept.append(text[at : opening.start()])
        at = end.end() if end is not None else len(text)
        if is_code and code is not None:
            kept.append(_place(text[opening.start() : at], code))
    return "".join(kept) + text[at:]


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


def _image_without_text(image: re.Match[str]) -> str:
    return f"![]{image['target']}" if image["target"] else image.group()


def _visible_tag(tag: re.Match[str]) -> str:
    kept = "".join(f" {name.lower()}={value}" for name, value in _KEPT_ATTRIBUTE.findall(tag.group(2)))
    return f"<{tag.group(1)}{kept}>"
