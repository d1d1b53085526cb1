"""Boxes below an answer that people tick in place of writing: how they stand there, and what an edit ticked. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

_BEGIN = "<!-- threadtree:boxes -->"
_END = "<!-- /threadtree:boxes -->"
_ROW = re.compile(r"^(?:\*\*(?P<question>.+)\*\*|- \[(?P<tick>[ xX])\] (?P<words>.+))$", re.MULTILINE)
_TICK = re.compile(r"^- \[[xX]\] ", re.MULTILINE)
_ANSWER = re.compile(r"^> .*\n\n", re.MULTILINE)
CHANGED = "Nothing was done: the text of this comment was changed. It is again as it was: read it, then tick."
TICK_ONE_OF_EACH = "Or tick one of each. When each question has a tick, the agent goes on."


@dataclass(frozen=True, slots=True)
class Box:
    """A box: its words, below which question if any, as Markdown, and whether it is ticked."""

    question: str
    words: str
    is_ticked: bool = False


def boxes(words: Sequence[str]) -> str:
    """Return empty boxes with these words, each a line of Markdown."""
    return _between("\n".join(f"- [ ] {one}" for one in words))


def questions(asked: Mapping[str, Sequence[str]]) -> str:
    """Return questions with boxes for their choices, all lines of Markdown."""
    lists = ("\n".join([f"**{one}**", "", *(f"- [ ] {words}" for words in asked[one])]) for one in asked)
    return _between("\n\n".join((TICK_ONE_OF_EACH, *lists)))


def boxes_of(body: str) -> tuple[Box, ...]:
    """Return the boxes of a comment."""
    found, question = [], ""
    for row in _ROW.finditer(_parted(body)[1]):
        question = row["question"] or question
        if row["words"]:
            found.append(Box(question, row["words"], row["tick"] != " "))
    return tuple(found)


def may_have_ticks(body: str) -> bool:
    """Return False only for a comment without a ticked box of the bot's."""
    return _BEGIN in body and any(box.is_ticked for box in boxes_of(body))


def ticked(posted: str, before: str, after: str, now: str) -> tuple[Box, ...] | None:
    """Return the boxes that an edit from `before` to `after` ticked, and that are ticked `now`.

    None where the texts differ from what the bot `posted` in more than ticks: nobody knows what was read.
    """
    if len({_unticked(text) for text in (posted, before, after)}) > 1:
        return None
    was, still = boxes_of(before), boxes_of(now)
    return tuple(box for box in boxes_of(after) if box.is_ticked and box not in was and box in still)


def with_answer(content: str, words: str) -> str:
    """Return the comment with this line below its boxes, which are empty; without boxes, as it is."""
    head, section, tail = _parted(_unticked(content))
    rows = _ANSWER.sub("", section).strip("\n")
    return f"{head}{_between(rows, f'> {words}')}{tail}" if section else content


def with_choice(content: str, chosen: Sequence[Box], login: str, at: datetime) -> str:
    """Return the comment with what was chosen, by whom and when, in place of its boxes."""
    head, section, tail = _parted(content)
    lines = [f"- ☑ {': '.join(filter(None, (box.question, box.words)))}" for box in chosen]
    shown = "\n".join([f"`{login}` chose, {at.astimezone(UTC):%Y-%m-%d %H:%M} UTC:", "", *lines])
    return f"{head}{shown}{tail}" if section else content


def _between(rows: str, answer: str = "") -> str:
    return "\n\n".join(filter(None, (f"{_BEGIN}\n{rows}", answer, _END)))


def _parted(body: str) -> tuple[str, str, str]:
    """Return what stands before the boxes, the boxes, and the rest. The last count: the agent's words are above."""
    head, begin, rest = body.replace("\r\n", "\n").rpartition(_BEGIN)
    section, end, tail = rest.partition(_END)
    return (head, section, tail) if begin and end else (body, "", "")


def _unticked(body: str) -> str:
    head, section, tail = _parted(body)
    return f"{head}{_BEGIN}{_TICK.sub('- [ ] ', section)}{_END}{tail}" if section else body
