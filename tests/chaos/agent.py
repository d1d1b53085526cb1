"""The scripted agent with a journal of what it did, outside the worktree: arguments JOURNAL …

The folder JOURNAL gets a line in `lines` for each start, end, write and commit, and one where another agent is at work
in the same directory. One more command: `pause SECONDS`. No import of `tests`: it starts often.
"""

import fcntl
import hashlib
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
    """Append one line; the kernel keeps lines of several processes whole."""
    line = {"at": time.time(), "pid": os.getpid(), "event": event, "cwd": str(cwd), **more}
    descriptor = os.open(JOURNAL / "lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, json.dumps(line).encode() + b"\n")
    os.close(descriptor)


@contextmanager
def alone_in(cwd: Path) -> Iterator[None]:
    """Note where another agent is at work in this directory. The kernel ends the lock with the process."""
    place = JOURNAL / hashlib.sha256(str(cwd.resolve()).encode()).hexdigest()
    with place.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note("not-alone", cwd)
        yield


class Journaled(Work):
    """Work of which every effect is noted once it is there."""

    __slots__ = ()

    def obey(self, request: str) -> None:
        tag = next((word for word in request.split() if word.startswith("R-")), "")
        with alone_in(self.cwd):
            note("start", self.cwd, tag=tag)
            super().obey(request)
            note("end", self.cwd, tag=tag)

    def _edit(self, path: Path, text: str, mode: str) -> None:
        super()._edit(path, text, mode)
        if path.is_file():
            note("wrote", self.cwd, name=path.name, text=text, mode=mode)

    def _git(self, title: str, *commands: tuple[str, ...]) -> None:
        super()._git(title, *commands)
        status, head = work._git(self.cwd, "rev-parse", "HEAD")
        if status == 0:
            note("commit", self.cwd, sha=head)

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
