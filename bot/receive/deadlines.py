"""Many waits of the same length with one timer: one timer for each costs more than its share of a commit."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

# uvloop's clock counts whole milliseconds: a timer may fire this much early.
_EARLY_SECONDS = 0.002


@dataclass(slots=True, eq=False)
class Deadline:
    """One wait. Its owner sets `met` at its end; else `give_up` is called when it is `due`, once."""

    due: float
    give_up: Callable[[], object]
    met: bool = False
    missed: bool = False


class Deadlines:
    """The waits of at most `seconds`, in one event loop."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._waits: deque[Deadline] = deque()  # the oldest, which is due first, at the left
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, give_up: Callable[[], object]) -> Deadline:
        """Return a wait that begins now."""
        loop = asyncio.get_running_loop()
        deadline = Deadline(loop.time() + self.seconds, give_up)
        self._waits.append(deadline)
        self._watch(loop)
        return deadline

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waits and self._waits[0].met:
            self._waits.popleft()
        if self._timer is None and self._waits:
            self._timer = loop.call_at(self._waits[0].due, self._end_overdue, loop)

    def _end_overdue(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        while self._waits and self._waits[0].due <= loop.time() + _EARLY_SECONDS:
            deadline = self._waits.popleft()
            if not deadline.met:
                deadline.missed = True
                deadline.give_up()
        self._watch(loop)
