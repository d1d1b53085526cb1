"""Small words that sentences are made of: durations, counts, lists, folds, code."""

from collections.abc import Sequence
from datetime import timedelta

from bot.messages.escape import inline_code

LONGEST_LINE = 300
MOST_LISTED = 10


def format_duration(length: timedelta) -> str:
    """A duration as people say it: `8 s`, `2 min 5 s`, `1 h 3 min`, `9 d 4 h`."""
    seconds = max(0, round(length.total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"


def details(summary: str, content: str) -> str:
    """A closed section; the blank lines make GitHub read its content as Markdown."""
    return f"<details>\n<summary>{summary}</summary>\n\n{content}\n\n</details>"


def code_block(text: str, language: str = "") -> str:
    """The text in a fence that nothing in it can close."""
    longest = max((len(line) - len(line.lstrip("`")) for line in text.split("\n")), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def format_list(names: Sequence[str]) -> str:
    """The first names as code, and how many more there are."""
    shown = ", ".join(inline_code(truncate(name)) for name in names[:MOST_LISTED])
    more = len(names) - MOST_LISTED
    return f"{shown} and {more} more" if more > 0 else shown


def format_count(number: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def truncate(text: str) -> str:
    """At most one long line of it; escape after cutting, never before."""
    return text if len(text) <= LONGEST_LINE else text[: LONGEST_LINE - 1] + "…"
