"""The lines of a Markdown text that address a reader: no code, quotations, links, footnotes or hidden text."""

from dataclasses import dataclass

from bot.markdown import Node, attribute, block_lines, is_block, walk_visible

_SILENT = frozenset(("a", "code", "pre", "blockquote", "q"))


@dataclass(frozen=True, slots=True)
class SpokenLine:
    """One line as a reader sees it. Its source is line `first` of the text, or a later one before line `end`."""

    text: str
    first: int
    end: int


def spoken_lines(text: str) -> list[SpokenLine]:
    """Return the lines that address a reader, in order (DESIGN.md §4, triggers). Raises MarkdownError.

    `text` has its lines split at "\\n".
    """
    reading = _Reading(text.count("\n") + 1)
    for node, begins in walk_visible(text):
        reading.read(node, begins)
    reading.end_line()
    return reading.lines


class _Reading:
    """A walk over the page: the line being read, where its source is, and how many silent elements are around it."""

    def __init__(self, count: int) -> None:
        self.lines: list[SpokenLine] = []
        self._count = count
        self._line: list[str] = []
        self._silent = 0
        # The lines of the blocks around, innermost last: where the next line is at the earliest, and where each ends.
        # Raw HTML has no position: its lines come after the last block.
        self._at, self._ends = 0, [count]

    def read(self, node: Node, begins: bool) -> None:
        if node.is_text_node:
            self._read_text(node.text_content or "")
            return
        if is_block(node) or node.tag == "br":
            self.end_line()
        else:
            self._line.append(" " if node.tag in _SILENT or node.tag == "img" else "")
        if node.tag in _SILENT or (node.tag == "section" and "footnotes" in attribute(node, "class").split()):
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
            self.lines.append(SpokenLine(text, self._at, self._ends[-1]))
        self._line.clear()
