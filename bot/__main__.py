"""`threadtree`, also as `python -m bot`."""

import os
import signal
import sys

_PROCESSES = ("serve", "web", "worker")


def main() -> None:
    """Run the command that the arguments name."""
    if sys.argv[1:2] and sys.argv[1] in _PROCESSES:
        # Before anything slow is imported, until the event loop has its own handlers. An exception would get lost where
        # C code imports something.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os._exit(0))
    from bot.cli.main import main as run_command

    run_command()


if __name__ == "__main__":
    main()
