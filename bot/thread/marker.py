"""The invisible line that marks the bot's own comments, so that one already posted is found again."""

import re

from bot.thread.authority import MARKER

# What a marker looks like, however it is spaced or written.
_LOOKALIKE = re.compile(r"threadtree:(?=\s*(?:turn|reply)\s*=)", re.IGNORECASE)
_ZERO_WIDTH_SPACE = "\u200b"

LONGEST_MARKER = 80


def turn_marker(turn_id: int, part: int) -> str:
    """Return the marker of a turn's comment; part 1 is its tracking comment."""
    return f"{MARKER}turn={turn_id} part={part} -->"


def reply_marker(outbox_id: int) -> str:
    """Return the marker of a comment without a turn."""
    return f"{MARKER}reply={outbox_id} -->"


def without_markers(text: str) -> str:
    """Return a text that looks the same, but holds no marker."""
    return _LOOKALIKE.sub(f"threadtree{_ZERO_WIDTH_SPACE}:", text)


def unsigned(body: str) -> str:
    """Return what was signed."""
    content, marker, _ = body.rpartition(f"\n\n{MARKER}")
    return content if marker else body


def signed(content: str, marker: str) -> str:
    """Return the body to send: the content, and after it the only marker."""
    return f"{without_markers(content)}\n\n{marker}"
