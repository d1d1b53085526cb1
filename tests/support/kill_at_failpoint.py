"""Run `threadtree COMMAND …` with short waits: arguments NAME FILE COMMAND …

It is killed at the failpoint NAME once FILE exists.
"""

import os
import signal
import sys
from pathlib import Path

from bot import failpoints
from bot.cli.main import main
from tests.chaos.program import shorten_waits


def arm(name: str, armed: Path) -> None:
    """End the process with SIGKILL where it first reaches this failpoint while `armed` exists."""

    def kill(reached: str) -> None:
        if reached == name and armed.exists():
            armed.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.listener = kill


if __name__ == "__main__":
    shorten_waits()
    arm(sys.argv[1], Path(sys.argv[2]))
    del sys.argv[1:3]
    main()
