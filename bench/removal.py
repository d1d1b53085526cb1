"""How long a removal and a rescue take, each beside git's own command on the same tree."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.repository import Repository, git
from bench.sweep import fill_up
from bot import failpoints
from bot.tree.clone.clone import clone_lock
from bot.tree.remove import Remote, Removed, remove
from bot.tree.rescue.save import Rescued, save_rescue

REMOVAL_LIMIT_MS = 50.0
"""Limit of a removal after the rescue, at any size."""
RESCUE_LIMIT = 2.0
"""Limit of a rescue, as a multiple of `git status` with a cold index, besides RESCUE_FIXED_MS."""
RESCUE_FIXED_MS = 50.0
"""The time to start git fifteen times, which does not depend on the size of the tree."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Medians at one size, in milliseconds: ours and git's command, in a clone with `registered` other worktrees."""

    files: int
    registered: int
    removal_ms: float
    git_remove_ms: float
    rescue_ms: float
    git_status_ms: float

    @property
    def holds(self) -> bool:
        """Return whether both limits are kept."""
        return (
            self.removal_ms <= REMOVAL_LIMIT_MS
            and self.rescue_ms <= RESCUE_LIMIT * self.git_status_ms + RESCUE_FIXED_MS
        )


async def measure(sizes: Sequence[int], runs: int, registered: int) -> list[Figure]:
    """Alternate both commands on worktrees of that many files, with three files changed in each.

    The first size once more in a clone with `registered` other worktrees.
    """
    return [*[await _at(size, runs, 0) for size in sizes], await _at(sizes[0], runs, registered)]


async def _at(files: int, runs: int, registered: int) -> Figure:
    with tempfile.TemporaryDirectory(prefix="threadtree-bench-", ignore_cleanup_errors=True) as directory:
        repository = await Repository.make(Path(directory), files)
        folder = repository.data_dir / "worktrees" / "octo" / "big"
        await asyncio.to_thread(fill_up, repository, folder, range(10_000, 10_000 + registered))
        removals: list[float] = []
        gits: list[float] = []
        rescues: list[float] = []
        statuses: list[float] = []
        for run in range(1, runs + 1):
            path = await repository.worktree(run)
            _change(path)
            rescued, status = await _rescue(repository, path, run)
            rescues.append(rescued)
            statuses.append(status)
            removals.append(await _remove(repository, path, run))
            other = await repository.worktree(run + 1000)
            gits.append(git(repository.clone.path, "worktree", "remove", "--force", "--force", str(other)))
        return Figure(
            files, registered, *(1000 * statistics.median(one) for one in (removals, gits, rescues, statuses))
        )


def _change(path: Path) -> None:
    (path / "d0000" / "f000000.txt").write_text("changed\n")
    (path / "d0000" / "f000001.txt").unlink()
    (path / "new.txt").write_text("new\n")


async def _rescue(repository: Repository, path: Path, run: int) -> tuple[float, float]:
    """Return the seconds of a rescue and of `git status`, each with an index without file times."""
    git(path, "read-tree", "HEAD")
    status = git(path, "status", "--porcelain")
    begin = time.perf_counter()
    found = await save_rescue(repository.locked(), path, repository.label(run, turn=0))
    taken = time.perf_counter() - begin
    if not isinstance(found, Rescued) or found.files != 3:
        raise RuntimeError(f"the rescue is not whole: {found}")
    return taken, status


async def _remove(repository: Repository, path: Path, run: int) -> float:
    """Return the seconds from the end of the rescue until the worktree is gone."""
    rescued_at = 0.0

    def listener(name: str) -> None:
        nonlocal rescued_at
        if name == "rescued":
            rescued_at = time.perf_counter()

    failpoints.listener = listener
    try:
        async with clone_lock(repository.clone) as lock:
            done = await remove(lock, path, repository.label(run, turn=1), Remote())
            taken = time.perf_counter() - rescued_at
    finally:
        failpoints.listener = None
    if not isinstance(done, Removed) or await asyncio.to_thread(path.exists) or not rescued_at:
        raise RuntimeError(f"it was not removed after a rescue: {done}")
    return taken


def report(figures: Sequence[Figure]) -> bool:
    """Print the figures; return whether all keep the limits."""
    columns = ("removal ms", "git worktree remove", "rescue ms", "cold git status", "ratio")
    widths = (11, 20, 10, 16, 6)
    print(
        f"{'files':>8} {'beside':>7} "
        + " ".join(f"{name:>{width}}" for name, width in zip(columns, widths, strict=True))
    )
    for one in figures:
        print(
            f"{one.files:8} {one.registered:7} {one.removal_ms:11.1f} {one.git_remove_ms:20.1f} {one.rescue_ms:10.1f}"
            f" {one.git_status_ms:16.1f} {one.rescue_ms / one.git_status_ms:6.2f}"
            f"{'' if one.holds else '  over the limit'}"
        )
    return all(one.holds for one in figures)
