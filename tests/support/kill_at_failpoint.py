"""Run `threadtree COMMAND …` with short waits: arguments FILE COMMAND …

FILE lists failpoints. The process is killed where it first reaches one of them, which is then taken off the list.
"""

import os
import signal
import sys
from pathlib import Path

from bot import failpoints
from bot.__main__ import main
from tests.chaos.program import shorten_waits


def arm(listed: Path) -> None:
    """End the process with SIGKILL where it first reaches a failpoint that is listed."""

    def kill(reached: str) -> None:
        names = listed.read_text().split() if listed.exists() else []
        if reached in names:
            names.remove(reached)
            listed.write_text(" ".join(names))
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.listener = kill


if __name__ == "__main__":
    shorten_waits()
    arm(Path(sys.argv.pop(1)))
    main()
