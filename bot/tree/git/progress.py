"""git's progress in short lines for people. Pure."""

import re
from collections.abc import Callable

_STEPS = re.compile(
    r"(?P<step>(?:Counting|Compressing|Receiving|Unpacking) objects|Resolving deltas|Checking connectivity)"
    r": +(?:(?P<percent>\d+)%|(?P<number>\d+))"
    r"(?:[^|\r\n]*\), (?P<size>[\d.]+ (?:bytes|[KMGT]iB)))?"
)
_OVERWRITTEN = re.compile(r"[^\r\n]*\r(?!\n)")
_PROGRESS = re.compile(rf"(?m)^(?:remote: )?(?:Enumerating objects|Total \d|{_STEPS.pattern}).*\n?")
# What a fetch did to each ref, https://git-scm.com/docs/git-fetch#_output; `!` is a refusal and stays.
_REFS = re.compile(r"(?m)^(?:From .*| [ *+t=-] .*)\n?")


class Reader:
    """A reader of git's stderr that calls `on_line`, if there is one, with each new line of progress."""

    def __init__(self, on_line: Callable[[str], None] | None) -> None:
        self._on_line = on_line
        self._rest = ""
        self._last: str | None = None

    def __call__(self, piece: bytes) -> None:
        *whole, self._rest = re.split(r"[\r\n]", self._rest + piece.decode(errors="replace"))
        line = next((said for text in reversed(whole) if (said := short_line(text))), None)
        if self._on_line is not None and line is not None and line != self._last:
            self._last = line
            self._on_line(line)


def short_line(text: str) -> str | None:
    """Return a line of git's progress for people ("Receiving objects 43%, 1.2 GiB"); None if it is no progress."""
    found = _STEPS.search(text)
    if found is None:
        return None
    done = f"{found['percent']}%" if found["percent"] else found["number"]
    return f"{found['step']} {done}" + (f", {_rounded(found['size'])}" if found["size"] else "")


def without_progress(stderr: str) -> str:
    """Return git's stderr without progress and without what succeeded."""
    return _REFS.sub("", _PROGRESS.sub("", _OVERWRITTEN.sub("", stderr)))


def _rounded(size: str) -> str:
    number, unit = size.split(" ")
    return f"{float(number):.1f} {unit}" if unit in ("GiB", "TiB") else f"{float(number):.0f} {unit}"
