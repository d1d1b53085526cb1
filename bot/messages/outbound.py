"""What the agent wrote on its way to GitHub: secrets out, cut to comments, made harmless, in this order."""

from collections.abc import Iterable

from bot.messages.redact import redact
from bot.messages.sanitize import sanitize
from bot.messages.split import COMMENT_CHARACTERS, split


def answer_parts(
    answer: str, *, secrets: Iterable[str], server_url: str, limit: int = COMMENT_CHARACTERS
) -> tuple[str, ...]:
    """The answer in parts that each fit a comment of `limit` characters and can stand alone; none for an empty one."""
    clean = redact(answer, secrets).strip("\n")
    if not clean.strip():
        return ()
    # Each part is made harmless by itself, as a cut may bare what was code; that can make it longer.
    room = limit
    while True:
        parts = tuple(sanitize(part, server_url) for part in split(clean, room))
        if all(len(part) <= limit for part in parts) or room < 100:
            return parts
        room //= 2
