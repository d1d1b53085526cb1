"""Parts of sentences: durations, counts, lists, folds, and foreign values as plain text."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

LONGEST_LINE = 300
MOST_LISTED = 10

# Only what is live inside a line: notification mails show the backslashes.
_MARKDOWN = re.compile(r"([\\`*_\[\]<>#|~]|^[+=-]|(?<=^\d)[.)]|:(?=\S)|&(?=[#A-Za-z]))")
# GitHub reads closing references in the words of the page, where an escape is not seen.
_CLOSING = re.compile(
    r"(?<![A-Za-z0-9])(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)(?=:?\s*(?:#|GH-|[\w.-]+/[\w.-]+#|https?:))",
    re.IGNORECASE,
)
_CODE_SPAN = re.compile(r"(?P<ticks>`+)(?!`)(?P<code>.+?)(?<!`)(?P=ticks)(?!`)")
_WORD_JOINER = "\u2060"


def format_duration(length: timedelta) -> str:
    """Return a duration as people say it: `8 s`, `2 min 5 s`, `1 h 3 min`, `9 d 4 h`."""
    seconds = max(0, round(length.total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"


def format_moment(moment: datetime, now: datetime) -> str:
    """Return the minute at which `moment` is past: `at 14:05 UTC`, or with its date where that is not near."""
    minute = (moment + timedelta(seconds=59)).astimezone(UTC)
    near = abs(moment - now) < timedelta(hours=20)
    return f"at {minute:%H:%M} UTC" if near else f"on {minute:%Y-%m-%d} at {minute:%H:%M} UTC"


def details(summary: str, content: str) -> str:
    """Return a closed fold; the blank lines make GitHub read its content as Markdown."""
    return f"<details>\n<summary>{summary}</summary>\n\n{content}\n\n</details>"


def code_block(text: str, language: str = "") -> str:
    """Return the text in a fence that is longer than any run of backticks in it, so that nothing closes it early."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def format_list(names: Sequence[str]) -> str:
    """Return the first names as code, and how many more there are."""
    shown = ", ".join(inline_code(truncate(name)) for name in names[:MOST_LISTED])
    more = len(names) - MOST_LISTED
    return f"{shown} and {more} more" if more > 0 else shown


def format_dollars(amount: float) -> str:
    """Return US dollars to the cent: `$0.12`, `$1,234.50`."""
    return f"${amount:,.2f}"


def format_count(number: int, noun: str) -> str:
    """Return `1 file` or `2 files`."""
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def truncate(text: str) -> str:
    """Return at most one long line of the text. Escape after cutting, never before."""
    return text if len(text) <= LONGEST_LINE else text[: LONGEST_LINE - 1] + "…"


def inline_code(value: str) -> str:
    """Return the value as one code span on one line, whatever backticks it holds."""
    line = _printable_line(value)
    if not line:
        return "` `"
    longest = max((len(run) for run in re.findall(r"`+", line)), default=0)
    ticks = "`" * (longest + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{pad}{line}{pad}{ticks}"


def inline_text(value: str) -> str:
    """Return the value as words on one line, its code spans as code: no other markup, no link, no mention."""
    line, done, out = _printable_line(value), 0, []
    for span in _CODE_SPAN.finditer(line):
        out += [_escaped(line[done : span.start()]), inline_code(span["code"])]
        done = span.end()
    return "".join([*out, _escaped(line[done:])])


def _escaped(text: str) -> str:
    text = _CLOSING.sub(rf"\g<0>{_WORD_JOINER}", text)
    escaped = _MARKDOWN.sub(r"\\\1", text)
    escaped = re.sub(r"(?i)(www)\.", rf"\1{_WORD_JOINER}.", escaped)
    escaped = re.sub(r"(?i)\b(GH)-(?=\d)", rf"\1{_WORD_JOINER}-", escaped)
    return escaped.replace("@", f"@{_WORD_JOINER}")


def clause(words: str) -> str:
    """Return foreign words within a sentence of ours, which brings the full stop: as code where Markdown reads them."""
    line = _printable_line(truncate(words.rstrip(" .")))
    if _escaped(line) == line:
        return line
    head, colon, rest = line.partition(": ")
    is_sentence = " " in head and _escaped(head) == head
    return f"{head}: {inline_code(rest)}" if colon and is_sentence else inline_code(line)


def plain(markdown: str) -> str:
    """Return a sentence of ours as people read it, for rows and terminals: without the marks of Markdown."""
    from bot.markdown import MarkdownError, walk  # they take memory, which the web process can spare

    try:
        shown = "".join(node.text_content or "" for node, begins in walk(markdown) if begins and node.is_text_node)
    except MarkdownError:
        shown = markdown
    return one_line(shown).replace(_WORD_JOINER, "")


def capitalize(words: str) -> str:
    """Return the words with a capital first letter; the others stay as they are."""
    return words[:1].upper() + words[1:]


def url_target(url: str) -> str:
    """Return an address as a link's destination; branch names in it may hold brackets."""
    return url.replace("(", "%28").replace(")", "%29").replace(" ", "%20").replace("<", "%3C").replace(">", "%3E")


def one_line(text: str) -> str:
    """Return the text on one line, with single spaces."""
    return " ".join(text.split())


def _printable_line(value: str) -> str:
    return one_line("".join(c if c.isprintable() or c.isspace() else "\ufffd" for c in value))
