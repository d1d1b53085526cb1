"""Values that somebody else chose (branch, file, title, login, error text), in our Markdown as nothing but text."""

import re

_WHITESPACE = re.compile(r"\s+")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+\-!|~&:])")
_WORD_JOINER = "\u2060"


def inline_code(value: str) -> str:
    """The value as one code span, on one line, whatever backticks it holds."""
    line = _one_line(value)
    if not line:
        return "` `"
    longest = max((len(run) for run in re.findall(r"`+", line)), default=0)
    ticks = "`" * (longest + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{pad}{line}{pad}{ticks}"


def inline_text(value: str) -> str:
    """The value as plain words on one line: no markup, no link, no mention."""
    escaped = _MARKDOWN.sub(r"\\\1", _one_line(value))
    escaped = re.sub(r"(?i)\bwww\.", f"www{_WORD_JOINER}.", escaped)
    return escaped.replace("@", f"@{_WORD_JOINER}")


def url_target(url: str) -> str:
    """An address as a link's destination; branch names in it may hold brackets."""
    return url.replace("(", "%28").replace(")", "%29").replace(" ", "%20").replace("<", "%3C").replace(">", "%3E")


def _one_line(value: str) -> str:
    return _WHITESPACE.sub(" ", "".join(c if c.isprintable() or c.isspace() else "\ufffd" for c in value)).strip()
