"""A Markdown text as a reader of GitHub's page sees it: a stranger could hide instructions in the rest. Pure."""

import re
import unicodedata
from dataclasses import dataclass, field

from bot.markdown import MarkdownError, Node, attribute, is_block, walk_visible
from bot.thread.formatting import code_block, inline_code, one_line

_MARKS = {"strong": "**", "b": "**", "em": "*", "i": "*", "del": "~~", "s": "~~"}
# These languages change what GitHub shows of a block; the name of any other is not shown.
_LANGUAGES = frozenset(("diff", "suggestion"))
# Quotations and items of lists within each other that are told as such.
_DEEPEST = 20
_LINE_BREAK = re.compile(r"[ \t]*\n[ \t]*")
_NUMBER = re.compile(r"[0-9]{1,9}")

_KEPT_CONTROLS = frozenset("\n\t")
# Drawn as nothing though Unicode calls them letters or marks: fillers of Hangul and Khmer, the blank Braille pattern.
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})


@dataclass(slots=True)
class _Element:
    """An element that is being read: the blocks in it, and the line after the last of them."""

    blocks: list[str] = field(default_factory=list)
    line: list[str] = field(default_factory=list)

    def text(self, separator: str = "\n\n") -> str:
        """Return all that was read, the blocks apart by `separator`."""
        self.end_line()
        return separator.join(self.blocks)

    def verbatim(self) -> str:
        """Return all that was read, with its line breaks and spaces."""
        return "\n".join([*self.blocks, "".join(self.line)])

    def end_line(self) -> None:
        """Make a block of the line."""
        if text := re.sub(r"\n{2,}", "\n", "".join(self.line)).strip(" \n"):
            self.blocks.append(text)
        self.line.clear()


def strip_hidden(text: str) -> str:
    """Return what the page of `text` shows, as Markdown: its words, code, links, lists and tables.

    Not shown are comments, definitions, titles, the text in place of an image, invisible characters and the like. A
    text that no parser reads is returned as it is written.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        return drop_invisible(_shown(text)).strip("\n ")
    except MarkdownError:
        return drop_invisible(text).strip("\n ")


def drop_invisible(text: str) -> str:
    """Return `text` without format characters (zero width, bidi, tags), variation selectors, controls and blanks."""
    return "".join(character for character in text if not _is_invisible(character))


def _is_invisible(character: str) -> bool:
    if character in _KEPT_CONTROLS:
        return False
    if character in _BLANKS or "\ufe00" <= character <= "\ufe0f" or "\U000e0000" <= character <= "\U000e0fff":
        return True
    return unicodedata.category(character) in _INVISIBLE_CATEGORIES


def _shown(text: str) -> str:
    around, quotes_and_items, verbatim = [_Element()], 0, 0
    for node, begins in walk_visible(text):
        if not node.is_element_node:
            words = node.text_content or ""
            around[-1].line.append(words if verbatim else _LINE_BREAK.sub("\n", words))
            continue
        change = 1 if begins else -1
        verbatim += change * (node.tag == "pre")
        quotes_and_items += change * (node.tag in ("blockquote", "li"))
        if begins:
            around.append(_Element())
            continue
        element, outer = around.pop(), around[-1]
        if not is_block(node):
            if element.blocks:  # raw HTML may have a block within a line
                outer.end_line()
                outer.blocks += element.blocks
            words = "".join(element.line)
            outer.line.append(words if verbatim or element.blocks else _inline(node, words))
            continue
        outer.end_line()
        if block := _block(node, element, len(outer.blocks), deep=quotes_and_items >= _DEEPEST):
            outer.blocks.append(block)
    return around[0].text()


def _inline(node: Node, words: str) -> str:
    """Return the element that is part of a line and shows `words`."""
    match node.tag:
        case "a":
            return _link(node, words)
        case "code":
            return inline_code(words)
        case "img":
            return f"![]({attribute(node, 'src')})"
        case "br":
            return "\n"
        case "input":
            is_box = attribute(node, "type").lower() == "checkbox"
            return ("[x]" if "checked" in node.attributes else "[ ]") if is_box else ""
        case "q":
            return f'"{words}"'
        case tag:
            mark = _MARKS.get(tag or "", "") if words.strip() else ""
            return f"{mark}{words}{mark}"


def _link(node: Node, words: str) -> str:
    address, attributes = attribute(node, "href"), node.attributes
    if "data-footnote-backref" in attributes:
        return ""
    if "data-footnote-ref" in attributes:
        return f"[^{address.removeprefix('#fn-')}]"
    is_bare = address.removeprefix("http://").removeprefix("mailto:") in (words, words.removeprefix("http://"))
    return words if is_bare or not address else f"[{words}]({address})"


def _block(node: Node, element: _Element, index: int, *, deep: bool) -> str:
    """Return the element that is a block, the one at `index` of those around it."""
    match node.tag:
        case "pre":
            language = attribute(node, "lang")
            return code_block(element.verbatim(), language if language in _LANGUAGES else "")
        case "h1" | "h2" | "h3" | "h4" | "h5" | "h6" as tag:
            return f"{'#' * int(tag[1])} {element.text()}"
        case "hr":
            return "---"
        case "blockquote":
            return element.text() if deep else _prefixed("> ", "> ", element.text())
        case "li":
            is_loose = any(child.tag == "p" for child in node.iter())
            marker, words = _marker(node, index), element.text("\n\n" if is_loose else "\n")
            return f"{marker}{words}" if deep else _prefixed(marker, " " * len(marker), words)
        case "td" | "th":
            return one_line(element.text()) or " "
        case "tr":
            return f"| {' | '.join(element.blocks)} |"
        case "thead":
            return f"{element.text()}\n|{'---|' * len(node.css('th'))}"
        case "table" | "tbody" | "ul" | "ol":
            return element.text("\n")
        case _:
            return element.text()


def _marker(item: Node, index: int) -> str:
    if (name := attribute(item, "id")).startswith("fn-"):
        return f"[^{name.removeprefix('fn-')}]: "
    if item.parent is None or item.parent.tag != "ol":
        return "- "
    start = attribute(item.parent, "start")
    return f"{index + (int(start) if _NUMBER.fullmatch(start) else 1)}. "


def _prefixed(first: str, other: str, text: str) -> str:
    lines = text.split("\n")
    return "\n".join(f"{other if number else first}{line}".rstrip(" ") for number, line in enumerate(lines))
