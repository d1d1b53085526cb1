"""The base of all rules of a history: after each act of the bot, all earlier work still exists."""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import structlog
from hypothesis.stateful import RuleBasedStateMachine

from bot.store.database import Pool
from tests.support.git_repositories import git
from tests.support.histories.database import NODE
from tests.support.histories.inventory import Found
from tests.support.histories.node import HistoryNode, close

T = TypeVar("T")

LIVE = """
select id, path, branch, state from worktrees where node = $1 and state in ('reserved', 'ready', 'removing')
order by id
"""
WARNED_OF = ("turn-failed", "turn-crashed", "publish-failed", "commits-not-imported")
"""Log events of problems that a history does not cause."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts that all histories share: the event loop, the database, and whether there is a cage."""

    loop: asyncio.Runner
    pool: Pool
    directory: Path
    sandbox: Literal["off", "bwrap"]


class Machine(RuleBasedStateMachine):
    """One history. `damaged` are paths that were damaged since the last turn there."""

    def __init__(self, theatre: Shared) -> None:
        super().__init__()
        self.theatre = theatre
        self.root = Path(tempfile.mkdtemp(dir=theatre.directory)).resolve()
        self.damaged: set[Path] = set()
        self.log: list[dict[str, Any]] = []
        structlog.configure(processors=[structlog.processors.format_exc_info, self._note])
        self.ground = self._play(HistoryNode.make(self.root, theatre.pool, theatre.sandbox))
        self.seen: Found = self.ground.ledger.look()

    def teardown(self) -> None:
        self._play(close(self.ground))
        shutil.rmtree(self.root, ignore_errors=True)

    def bot(self, doing: Coroutine[Any, Any, T], *, index_too: bool = False) -> T:
        """Let the bot act; check that nothing is missing afterwards."""
        before = self.seen
        try:
            result = self._play(doing)
        except AssertionError as problem:
            problem.add_note(f"the log says: {self.wrong()}")
            raise
        self.seen = self.ground.ledger.look()
        lost = self.ground.ledger.lost(before, self.seen, index_too=index_too)
        assert not lost, f"lost: {lost}"
        self._check_remote(before)
        assert not self.wrong(), f"the log says: {self.wrong()}"
        return result

    def wrong(self) -> list[dict[str, Any]]:
        """Return the log events of problems that a history does not cause."""
        return [entry for entry in self.log if entry["log_level"] == "error" or entry["event"] in WARNED_OF]

    @contextmanager
    def hands(self) -> Iterator[None]:
        """Let people or agents act: what they drop themselves need not be kept."""
        yield
        self.seen = self.ground.ledger.look()

    def live_paths(self) -> set[Path]:
        """Return the paths of the worktrees that have a row."""
        return {self.ground.ctx.directory(row["path"]) for row in self._play(self.ground.rows(LIVE, NODE))}

    def excuse_all(self) -> None:
        """Allow rows, directories and entries to differ until an interrupted act is completed."""
        self.damaged |= {*self.live_paths(), *self.ground.entry_paths(), *self.ground.directories()}

    def check_order(self) -> None:
        """Check that each undisturbed worktree has one directory, one row and one entry of git."""
        rows = self._play(self.ground.rows(LIVE, NODE))
        entries, directories = self.ground.entry_paths(), self.ground.directories()
        live = [self.ground.ctx.directory(row["path"]) for row in rows]
        for row, path in zip(rows, live, strict=True):
            if row["state"] == "ready" and path not in self.damaged:
                assert path.is_dir(), f"no directory for {dict(row)}"
                assert entries.count(path) == 1, f"git's entries for {dict(row)}: {entries}"
        strangers = ({*entries, *directories}) - {*live} - self.damaged
        assert not strangers, f"nobody's: {sorted(strangers)}"
        assert len(live) == len({*live}) or any(row["state"] == "removing" for row in rows)

    def _check_remote(self, before: Found) -> None:
        """Check that no branch of the remote was force-pushed or deleted, and the default branch was not pushed to."""
        for ref, was in before.remote.items():
            now = self.seen.remote.get(ref)
            assert now is not None, f"{ref} was deleted"
            if now != was:
                assert ref != "refs/heads/main", "the default branch was pushed to"
                assert git(self.ground.remote, "merge-base", was, now) == was, f"{ref} was forced"

    def _play(self, doing: Coroutine[Any, Any, T]) -> T:
        return self.theatre.loop.run(doing)

    def _note(self, _: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        self.log.append({"log_level": "error" if method == "exception" else method, **event})
        raise structlog.DropEvent
