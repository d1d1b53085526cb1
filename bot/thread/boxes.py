"""Boxes below an answer that people tick in place of writing: how they stand there, and what an edit ticked. Pure."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

_BEGIN = "<!-- threadtree:boxes -->"
_END = "<!-- /threadtree:boxes -->"
_BOX = re.compile(r"^- \[(?P<tick>[ xX])\] (?P<words>.+)$", re.MULTILINE)
CHANGED = "Nothing was done: the text of this comment was changed. It is again as it was: read it, then tick."


def boxes(words: Sequence[str]) -> str:
    """Return empty boxes with these words, each a line of Markdown."""
    return _between("\n".join(f"- [ ] {one}" for one in words))


def may_have_ticks(body: str) -> bool:
    """Return False only for a comment without a ticked box of the bot's."""
    return _BEGIN in body and any(tick != " " for tick, _ in _BOX.findall(_parted(body)[1]))


def ticked(posted: str, before: str, after: str, now: str) -> tuple[str, ...] | None:
    """Return the words of the boxes that an edit from `before` to `after` ticked, and that are ticked `now`.

    None where the texts differ from what the bot `posted` in more than ticks: nobody knows what was read.
    """
    if len({_unticked(text) for text in (posted, before, after)}) > 1:
        return None
    was, still = _ticks(before), _ticks(now)
    return tuple(words for words in _ticks(after) if words not in was and words in still)


def with_answer(content: str, words: str) -> str:
    """Return the comment with these words below its boxes, which are empty; without boxes, as it is."""
    head, section, tail = _parted(content)
    rows = [f"- [ ] {label}" for _, label in _BOX.findall(section)]
    return f"{head}{_between(chr(10).join(rows), words)}{tail}" if rows else content


def with_choice(content: str, words: Sequence[str], login: str, at: datetime) -> str:
    """Return the comment with what was chosen, by whom and when, in place of its boxes."""
    head, section, tail = _parted(content)
    chosen = "\n".join(f"☑ {one}" for one in words)
    return f"{head}{chosen} (`{login}`, {at.astimezone(UTC):%Y-%m-%d %H:%M} UTC){tail}" if section else content


def _between(rows: str, answer: str = "") -> str:
    return "\n\n".join(filter(None, (f"{_BEGIN}\n{rows}", answer, _END)))


def _parted(body: str) -> tuple[str, str, str]:
    """Return what stands before the boxes, the boxes, and the rest. The last count: the agent's words are above."""
    head, begin, rest = body.replace("\r\n", "\n").rpartition(_BEGIN)
    section, end, tail = rest.partition(_END)
    return (head, section, tail) if begin and end else (body, "", "")


def _ticks(body: str) -> list[str]:
    return [words for tick, words in _BOX.findall(_parted(body)[1]) if tick != " "]


def _unticked(body: str) -> str:
    head, section, tail = _parted(body)
    return "\0".join((head, _BOX.sub(r"- [ ] \g<words>", section), tail))
