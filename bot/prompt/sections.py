"""A section of the prompt within its part of the budget. Pure.

It keeps a prefix of its entries, in the order in which they matter. So a larger budget never drops anything.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bot.prompt.foreign import Fence, Foreign
from bot.prompt.hidden import drop_invisible
from bot.thread.formatting import one_line

_SHORTEST_CUT_CHARACTERS = 200
_NEWEST_FOR_ONE_OLDEST = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """A text in its fence. `head` is the rest of the opening tag. `inline`: the inline comment that it is."""

    head: str
    body: str
    inline: int | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """A headline and its entries, the most important first. `share` is its part of the budget, in percent.

    `in_time`: the entries are a conversation, the oldest first. Where it does not fit, its middle is left out, and its
    end is longer than its beginning.
    """

    title: str
    entries: Sequence[Entry]
    share: int
    unit: str
    in_time: bool = False


class Fitted(NamedTuple):
    """A section as it fits, and the entries in it, of which one may be cut. `is_whole`: it is all there."""

    text: str
    entries: tuple[Entry, ...]
    is_whole: bool


def fit(section: Section, fence: Fence, budget: int) -> Fitted:
    """Return the section in at most `budget` characters, empty where nothing fits."""
    number, title, is_whole = len(section.entries), f"## {section.title}", True
    if not number:
        return Fitted("", (), is_whole)
    room, kept = budget - len(title) - len(_did_not_fit(number, section.unit)) - 4, dict[int, str]()
    for at in _by_importance(number) if section.in_time else range(number):
        entry = section.entries[at]
        text = fence.block(entry.head, Foreign(entry.body))
        if len(text) + 2 > room:
            is_whole = False
            spare = room - (len(text) - len(entry.body)) - len(_cut(len(entry.body))) - 2
            if spare >= _SHORTEST_CUT_CHARACTERS:
                kept[at] = fence.block(entry.head, Foreign(shortened(entry.body, spare)))
            break
        kept[at] = text
        room -= len(text) + 2
    parts = [kept[at] for at in sorted(kept)]
    if len(parts) < number:
        gap = next(at for at in range(number) if at not in kept)
        parts.insert(gap, _did_not_fit(number - len(parts), section.unit))
    whole = "\n\n".join([title, *parts])
    if len(whole) > budget:
        return Fitted("", (), is_whole=False)
    return Fitted(whole, tuple(section.entries[at] for at in sorted(kept)), is_whole)


def shortened(text: str, most: int) -> str:
    """Return the beginning of a text, and how much of it is left out."""
    return text if len(text) <= most else text[:most] + _cut(len(text) - most)


def line(text: str) -> str:
    """Return a title, a name or a path on one line, without invisible characters."""
    return drop_invisible(one_line(text))


def attribute(text: str) -> str:
    """Return foreign text for the opening tag of a fence: on one line, and it cannot end the tag."""
    return line(text).replace('"', "'").replace("<", "(").replace(">", ")")


def _by_importance(number: int) -> list[int]:
    """Return the places of a conversation: some from its end, then one from its beginning, and so on."""
    left, order = deque(range(number)), list[int]()
    while left:
        is_oldest = len(order) % (_NEWEST_FOR_ONE_OLDEST + 1) == _NEWEST_FOR_ONE_OLDEST
        order.append(left.popleft() if is_oldest else left.pop())
    return order


def _did_not_fit(number: int, unit: str) -> str:
    return f"[{number} {unit} did not fit.]"


def _cut(characters: int) -> str:
    return f"\n[{characters} more characters did not fit.]"
