"""Processes that a test can tell from all others: each sleeps for a number of seconds nobody else sleeps for."""

import secrets
from contextlib import suppress
from pathlib import Path


def new_sleep() -> str:
    """A command for a shell that takes years."""
    return f"sleep {10**9 + secrets.randbelow(10**9)}"


def runs(command: str) -> bool:
    """Whether any process of this machine, in whatever cage, runs this command."""
    wanted = command.replace(" ", "\0").encode()
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it may have ended just now
            if line.read_bytes().strip(b"\0") == wanted:
                return True
    return False
