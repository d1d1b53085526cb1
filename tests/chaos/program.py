"""Run `threadtree COMMAND …` with short waits: arguments ARMED SKEW COMMAND …

It is killed at a failpoint that the file ARMED names; its clock is wrong by as many seconds as the file SKEW says.
"""

import os
import signal
import sys
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from types import ModuleType

from bot import failpoints, settings
from bot.cli import processes
from bot.github import transport
from bot.inbox import decider
from bot.node import identity, transactions
from bot.serve import worker
from bot.settings import Settings
from bot.store import database, engine
from bot.thread import outbox, pacing
from bot.turn import turn_run, waiting

NODE_TIMEOUT_SECONDS = 4.0
"""Shorter than the settings allow."""
NO_LIMIT = 1_000_000

SHORT: tuple[tuple[ModuleType, str, object], ...] = (
    (worker, "TICK_SECONDS", 0.8),
    (engine, "HEARTBEAT_SECONDS", 0.8),
    (engine, "STALLED_AFTER_SECONDS", 3.0),
    (engine, "POLL_SECONDS", 0.7),
    (engine, "STATEMENT_SECONDS", 3.0),
    (database, "_STATEMENT_SECONDS", 6.0),
    (pacing, "SPACING", timedelta()),
    (pacing, "MOST_A_MINUTE", NO_LIMIT),
    (pacing, "MOST_AN_HOUR", NO_LIMIT),
    (pacing, "_FIRST_BACKOFF", timedelta(seconds=0.3)),
    (pacing, "_LONGEST_BACKOFF", timedelta(seconds=2)),
    (outbox, "SECOND_LOOK_SECONDS", 0.3),
    (outbox, "WRITER_TAKEN_SECONDS", 0.3),
    (waiting, "SHORTEST", timedelta(seconds=0.5)),
    (waiting, "LONGEST", timedelta(seconds=2)),
    (turn_run, "STOP_POLL_SECONDS", 0.5),
    (transactions, "_PAUSE_SECONDS", 0.3),
    (identity, "LOOK_SECONDS", 1.0),
    (transport, "_READ_BACKOFF_SECONDS", (0.2, 0.5, 1.0)),
    (decider, "backoff_seconds", lambda _attempts: 1.0),
)
"""What the bot waits for, with seconds instead of minutes. Relations between them stay as they are."""


def shorten_waits() -> None:
    """Let this process wait for seconds where the bot waits for minutes."""
    for module, name, value in SHORT:
        if not hasattr(module, name):
            raise AttributeError(f"{module.__name__} has no {name}")
        setattr(module, name, value)


def hurry() -> None:
    """Shorten the waits of this process, and the time after which a node counts as silent."""
    shorten_waits()
    load = settings.load

    def load_with_short_timeout(*args: object, **needs: object) -> Settings:
        found = load(*args, **needs)  # type: ignore[arg-type]  # passed on
        return found.model_copy(update={"node_timeout_seconds": NODE_TIMEOUT_SECONDS})

    setattr(processes, "load", load_with_short_timeout)  # noqa: B010 - a function of the module is replaced


def arm(armed: Path) -> None:
    """End the process with SIGKILL where it first reaches a failpoint that `armed` names."""

    def kill(reached: str) -> None:
        try:
            if reached in armed.read_text().split():
                armed.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        except FileNotFoundError:
            return

    failpoints.listener = kill


def skew_clock(skew: Path) -> None:
    """Let the bot read a clock that is wrong."""

    class Wrong(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Wrong":
            try:
                seconds = float(skew.read_text() or 0)
            except FileNotFoundError:
                seconds = 0
            return super().now(tz) + timedelta(seconds=seconds)

    for name, module in list(sys.modules.items()):
        if name.startswith("bot.") and vars(module).get("datetime") is datetime:
            setattr(module, "datetime", Wrong)  # noqa: B010 - a class is replaced


if __name__ == "__main__":
    from bot.__main__ import main  # not where others import this: `python -m bot` runs it anew, and would warn

    hurry()
    arm(Path(sys.argv[1]))
    skew_clock(Path(sys.argv[2]))
    del sys.argv[1:3]
    main()
