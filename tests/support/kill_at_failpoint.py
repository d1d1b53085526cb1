"""Run `threadtree COMMAND …` that is killed at failpoint NAME once FILE exists: arguments NAME FILE COMMAND …."""

import os
import signal
import sys
from pathlib import Path

from bot import failpoints
from bot.cli.main import main


def arm(name: str, armed: Path) -> None:
    """From now on the process ends with SIGKILL where it first reaches this place, if `armed` exists by then."""

    def kill(reached: str) -> None:
        if reached == name and armed.exists():
            armed.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.listener = kill


if __name__ == "__main__":
    arm(sys.argv[1], Path(sys.argv[2]))
    del sys.argv[1:3]
    main()
