"""Processes that a test can identify: each sleeps for a unique number of seconds."""

import secrets
from contextlib import suppress
from pathlib import Path


def new_sleep() -> str:
    """Return a shell command that takes years."""
    return f"sleep {10**9 + secrets.randbelow(10**9)}"


def runs(command: str) -> bool:
    """Return whether any process of this machine, in any sandbox, runs this command."""
    wanted = command.replace(" ", "\0").encode()
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it may have ended just now
            if line.read_bytes().strip(b"\0") == wanted:
                return True
    return False
