"""The scripted agent, which also tells when its process began, when it was asked, and when it was done.

The moments are seconds of the clock that all processes of a machine share. A line `binaries COUNT BYTES` of a request
makes it write that many files which no compression makes smaller.
"""

import os
import re
import time
from pathlib import Path

BEGAN = time.monotonic()

from bot.simulated.agent.__main__ import main  # noqa: E402 -- the clock comes first
from bot.simulated.agent.work import Work  # noqa: E402

_obey = Work.obey


def write_binaries(folder: Path, count: int, size: int) -> None:
    """Write files of random bytes."""
    folder.mkdir(exist_ok=True)
    for number in range(count):
        (folder / f"{number}.bin").write_bytes(os.urandom(size))


def _timed(work: Work, request: str) -> None:
    asked = time.monotonic()
    if found := re.search(r"^binaries (\d+) (\d+)$", request, re.MULTILINE):
        write_binaries(work.cwd / "assets", int(found[1]), int(found[2]))
    _obey(work, request)
    work._say(f"Moments: {BEGAN:.4f} {asked:.4f} {time.monotonic():.4f}")


if __name__ == "__main__":
    setattr(Work, "obey", _timed)  # noqa: B010 -- mypy does not know that it becomes a method
    main()
