"""The processes that the bot starts, seen where it starts them; children of those processes are not counted."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from bot.sandbox import process
from bot.sandbox.process import ProcessGroup

_PROGRAMS = frozenset({"bwrap", "git", "prlimit"})
_WITH_VALUE = frozenset({"-C", "-c"})


@contextmanager
def processes_started() -> Iterator[list[str]]:
    """Yield a list that gets a line for each process of the bot: `git fetch`, `bwrap git status`, `setpriv python`.

    The simulated GitHub starts its git by other means.
    """
    lines: list[str] = []
    start = process.start

    async def noted(argv: Sequence[str], *args: object, **options: object) -> ProcessGroup:
        lines.append(line_of(argv))
        return await start(argv, *args, **options)  # type: ignore[arg-type]  # passed on as they are

    with patch("bot.tree.git.runner.start", noted), patch("bot.sandbox.process.start", noted):
        yield lines


def line_of(argv: Sequence[str]) -> str:
    """Return the names of the program and, for git, of its command with the first words that tell what it does."""
    words, names = list(argv), [Path(word).name for word in argv]
    sandboxed = "bwrap " if "bwrap" in names else ""
    if "git" not in names:
        return f"{sandboxed}{names[0]} {names[-1]}"
    after = words[max(place for place, name in enumerate(names) if name == "git" and words[place][0] != "-") + 1 :]
    while after and after[0].startswith("-"):
        del after[: 2 if after[0] in _WITH_VALUE else 1]
    return f"{sandboxed}git {' '.join(after[:5])}"
