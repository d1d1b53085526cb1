"""The scripted agent with a journal of what it did, outside the worktree: arguments JOURNAL …

The pipe JOURNAL/pipe gets a line for each start, end, write and commit, and one where another agent is at work in the
same directory. A sandbox shows the folder read-only; a pipe there can be written all the same. One more command:
`pause SECONDS`. No import of `tests`: it starts often, and in a sandbox it sees a copy of itself alone.
"""

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bot.simulated.agent import work
from bot.simulated.agent.__main__ import main
from bot.simulated.agent.work import Work

JOURNAL = Path(sys.argv[1])


def note(event: str, cwd: Path, **more: object) -> None:
    """Tell one line; the kernel keeps lines of several processes whole."""
    line = {"at": time.time(), "event": event, "cwd": str(cwd), **more}
    descriptor = os.open(JOURNAL / "pipe", os.O_WRONLY)
    os.write(descriptor, json.dumps(line).encode() + b"\n")
    os.close(descriptor)


@contextmanager
def alone_in(cwd: Path) -> Iterator[None]:
    """Note where another agent is at work in this directory. The kernel ends the lock with the process."""
    directory = os.open(cwd, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note("not-alone", cwd)
    try:
        yield
    finally:
        os.close(directory)


def _tag(request: str) -> str:
    return next((word for word in request.split() if word.startswith("R-")), "")


class Journaled(Work):
    """Work of which every effect is noted once it is there."""

    def obey(self, request: str) -> None:
        self.tag = _tag(request)
        with alone_in(self.cwd):
            self._note("start")
            super().obey(request)
            self._note("end")

    def _obey_added(self, texts: list[str]) -> None:
        for text in texts:
            first, self.tag = self.tag, _tag(text)
            self._note("start")
            super()._obey_added([text])
            self._note("end")
            self.tag = first

    def _note(self, event: str, **more: str) -> None:
        note(event, self.cwd, tag=self.tag, **more)

    def _edit(self, path: Path, text: str, mode: str) -> None:
        # A resumed agent that is killed while it writes a file again would itself destroy what it wrote before.
        is_there = mode == "w" and path.is_file() and path.read_text() == text
        super()._edit(path, *("", "a") if is_there else (text, mode))
        # What it leaves for the host, such as a review, is no work in the worktree.
        if path.is_file() and path.is_relative_to(self.cwd):
            self._note("wrote", name=path.name, text=text, mode=mode)

    def _git(self, title: str, *commands: tuple[str, ...]) -> None:
        _, before = work._git(self.cwd, "rev-parse", "HEAD")
        super()._git(title, *commands)
        status, head = work._git(self.cwd, "rev-parse", "HEAD")
        if status == 0 and head != before:
            self._note("commit", sha=head)

    def _troubles(self, word: str, rest: str) -> None:
        if word == "pause":
            self.stop.wait(float(rest))
        else:
            super()._troubles(word, rest)


if __name__ == "__main__":
    del sys.argv[1]
    # The protocol makes one Work for each prompt.
    sys.modules["bot.simulated.agent.protocol"].Work = Journaled  # type: ignore[attr-defined]  # replaced on purpose
    main()
