"""What the agents of a round tell of their work (see `agent.py`), outside all worktrees and sandboxes."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson


class Journal:
    """The lines of all agents so far. Each has `at`, `event`, `cwd` and the request's `tag`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self._lines: list[dict[str, Any]] = []
        self._rest = b""
        os.mkfifo(directory / "pipe")
        # Open for writing too: the pipe has an end as long as this process lives, so no agent waits for a reader.
        self.descriptor = os.open(directory / "pipe", os.O_RDWR | os.O_NONBLOCK)

    def close(self) -> None:
        os.close(self.descriptor)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All that was told until now."""
        self.read()
        return self._lines

    def read(self) -> None:
        """Empty the pipe: a full one would stop the agents."""
        with suppress(BlockingIOError):
            while told := os.read(self.descriptor, 1 << 16):
                *whole, self._rest = (self._rest + told).split(b"\n")
                self._lines += map(orjson.loads, whole)

    def at_work(self) -> list[int]:
        """Return the agents that have begun with a request and not told its end."""
        begun = dict[str, str]()
        for line in self.lines:
            if line["event"] == "start":
                begun[line["tag"]] = line["cwd"]
            elif line["event"] == "end":
                begun.pop(line["tag"], None)
        return [int(one.name) for one in Path("/proc").glob("[0-9]*") if self._is_agent(one, begun)]

    def _is_agent(self, process: Path, begun: dict[str, str]) -> bool:
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            is_agent = b"python" in words[0] and bytes(self.directory) in words
            return is_agent and str((process / "cwd").readlink()) in begun.values()
        except OSError:
            return False
