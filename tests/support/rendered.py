"""The page that GitHub shows of a Markdown text, for tests."""

import re

from bot.markdown import to_html


def html(markdown: str) -> str:
    """Return the page without the positions of its blocks."""
    return re.sub(r' data-sourcepos="[^"]*"', "", to_html(markdown))
