"""How long a new worktree takes, beside `git worktree add` on the same clone: as it was fetched, and packed."""

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.repository import Repository, git
from bot.clones.clone import clone_lock
from bot.clones.packing import pack_whole

# Limits for smaller repositories would measure the start of processes.
_LARGE = 20_000
PACKED_LIMIT = 0.6


@dataclass(frozen=True, slots=True)
class Figure:
    """Medians at one size, in milliseconds: git's command on the clone as it was fetched, and ours."""

    files: int
    git_ms: float
    fetched_ms: float
    packed_ms: float

    @property
    def holds(self) -> bool:
        """Return whether the limit of large repositories is kept."""
        return self.files < _LARGE or self.packed_ms <= PACKED_LIMIT * self.git_ms


async def measure(sizes: Sequence[int], runs: int) -> list[Figure]:
    """Make worktrees of that many files, in turn by each way."""
    return [await _at(size, runs) for size in sizes]


async def _at(files: int, runs: int) -> Figure:
    with tempfile.TemporaryDirectory(prefix="threadtree-bench-", ignore_cleanup_errors=True) as directory:
        places = [Path(tempfile.mkdtemp(dir=directory)) for _ in range(2)]
        fetched, packed = [await Repository.make(place, files) for place in places]
        async with clone_lock(packed.clone) as lock:
            await pack_whole(lock, "main", 0)
        taken: dict[str, list[float]] = {"git": [], "fetched": [], "packed": []}
        for run in range(1, runs + 1):
            taken["git"].append(_by_git(fetched))
            taken["fetched"].append(await _by_bot(fetched, run))
            taken["packed"].append(await _by_bot(packed, run))
        return Figure(files, *(1000 * statistics.median(one) for one in taken.values()))


def _by_git(repository: Repository) -> float:
    path = repository.data_dir / "by-git"
    taken = git(repository.clone.path, "worktree", "add", "-q", "--detach", str(path), "refs/remotes/origin/main")
    git(repository.clone.path, "worktree", "remove", "--force", str(path))
    return taken


async def _by_bot(repository: Repository, number: int) -> float:
    begin = time.perf_counter()
    path = await repository.worktree(number)
    taken = time.perf_counter() - begin
    git(repository.clone.path, "worktree", "remove", "--force", "--force", str(path))
    return taken


def report(figures: Sequence[Figure]) -> bool:
    """Print the figures; return whether all keep the limits."""
    print(f"{'files':>8} {'git worktree add':>17} {'fetched':>9} {'packed':>9}   ratios")
    for one in figures:
        ours = (one.fetched_ms, one.packed_ms)
        cells = " ".join(f"{value:9.0f}" for value in ours)
        ratios = " ".join(f"{value / one.git_ms:.2f}" for value in ours)
        print(f"{one.files:8} {one.git_ms:17.0f} {cells}   {ratios}{'' if one.holds else '  over the limit'}")
    return all(one.holds for one in figures)
