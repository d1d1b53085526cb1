"""The base of all rules of a history: after each act of the bot, all earlier work still exists."""

import asyncio
import shutil
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import structlog
from hypothesis import currently_in_test_context, event
from hypothesis.stateful import RuleBasedStateMachine

from bot.store.database import Pool
from tests.support.git_repositories import git
from tests.support.histories.database import NODE
from tests.support.histories.disk import IGNORED
from tests.support.histories.inventory import Found, staged_in
from tests.support.histories.node import HistoryNode, close

T = TypeVar("T")

LIVE = """
select id, path, branch, state from worktrees where node = $1 and state in ('reserved', 'ready', 'removing')
order by id
"""
RESETS = """
select worktree_id, array_agg(id || state order by id) as states, bool_or(state = 'running') as runs
from turns join requests on turn_id = id where verb = 'reset' group by worktree_id
"""
WARNED_OF = ("turn-failed", "turn-crashed", "publish-failed", "commits-not-imported")
"""Log events of problems that a history does not cause."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts that all histories share: the event loop, the database, and whether there is a sandbox."""

    loop: asyncio.Runner
    pool: Pool
    directory: Path
    sandbox: Literal["off", "bwrap"]


@dataclass(frozen=True, slots=True)
class Ignored:
    """The ignored files of one worktree, and what tells whether it was removed or reset since then."""

    path: Path
    inode: int
    resets: list[str]
    files: dict[str, bytes]


class Machine(RuleBasedStateMachine):
    """One history.

    `damaged` are paths that were damaged since the last turn there, or are half done; `spoiled` the damaged ones.
    """

    def __init__(self, theatre: Shared) -> None:
        super().__init__()
        self.theatre = theatre
        # The same for all histories: what they begin with names it.
        self.root = theatre.directory.resolve() / "history"
        self.damaged: set[Path] = set()
        self.spoiled: set[Path] = set()
        self.log: list[dict[str, Any]] = []
        structlog.configure(processors=[structlog.processors.format_exc_info, self._note])
        self.ground = self._play(HistoryNode.make(self.root, theatre.pool, theatre.sandbox))
        self.seen: Found = self.ground.ledger.look()
        self.ignored: dict[int, Ignored] = {}

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
        self._check_ignored()
        assert not self.wrong(), f"the log says: {self.wrong()}"
        return result

    def note(self, text: str) -> None:
        """Count how often this happens, for `--hypothesis-show-statistics`."""
        if currently_in_test_context():
            event(text)

    def wrong(self) -> list[dict[str, Any]]:
        """Return the log events of problems that a history does not cause."""
        return [entry for entry in self.log if entry["log_level"] == "error" or entry["event"] in WARNED_OF]

    @contextmanager
    def hands(self) -> Iterator[None]:
        """Let people or agents act: what they drop themselves need not be kept."""
        yield
        self.seen, self.ignored = self.ground.ledger.look(), self._ignored()

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

    def _ignored(self) -> dict[int, Ignored]:
        """Return the ignored files of the worktrees, by the id of the row."""
        found: dict[Path, dict[str, bytes]] = {}
        for path in self.ground.directories():
            if not path.is_symlink() and (files := list(path.glob(IGNORED))):
                state = self.ground.state(path)
                tracked = staged_in(state / "index") if state is not None else {}
                found[path] = {file.name: file.read_bytes() for file in files if file.name not in tracked}
        if not any(found.values()):
            return {}
        resets = {row["worktree_id"]: row for row in self._play(self.ground.rows(RESETS))}
        ignored = {}
        for row in self._play(self.ground.rows(LIVE, NODE)):
            path, reset = self.ground.ctx.directory(row["path"]), resets.get(row["id"])
            if path in found and row["state"] == "ready" and path not in self.spoiled and not (reset and reset["runs"]):
                states = reset["states"] if reset else []
                ignored[row["id"]] = Ignored(path, path.stat().st_ino, states, found[path])
        return ignored

    def _check_ignored(self) -> None:
        """Check that no ignored file was changed or deleted, except by a removal or a reset."""
        before, self.ignored = self.ignored, self._ignored()
        live = {row["id"] for row in self._play(self.ground.rows(LIVE, NODE)) if row["state"] == "ready"}
        resets = {row["worktree_id"]: row["states"] for row in self._play(self.ground.rows(RESETS))} if before else {}
        for worktree, was in before.items():
            if worktree not in live or resets.get(worktree, []) != was.resets or was.path in self.spoiled:
                continue
            assert was.path.stat().st_ino == was.inode, f"another directory at {was.path}"
            now = {file.name: file.read_bytes() for file in was.path.glob(IGNORED)}
            changed = {name: now.get(name) for name, text in was.files.items() if now.get(name) != text}
            assert not changed, f"ignored files of {was.path}: {changed}"

    def _play(self, doing: Coroutine[Any, Any, T]) -> T:
        return self.theatre.loop.run(doing)

    def _note(self, _: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        self.log.append({"log_level": "error" if method == "exception" else method, **event})
        raise structlog.DropEvent
