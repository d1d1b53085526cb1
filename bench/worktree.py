"""How long a new worktree takes, beside `git worktree add` on the same clone: as it was fetched, and packed."""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.repository import Repository, git
from bot.tree.clone.clone import clone_lock
from bot.tree.clone.packing import pack_whole

# Limits for smaller repositories would measure the start of processes.
_LARGE = 20_000
PACKED_LIMIT = 0.6


@dataclass(frozen=True, slots=True)
class Figure:
    """The milliseconds of each repetition at one size: git's command on the clone as it was fetched, and ours."""

    files: int
    git: Sequence[float]
    fetched: Sequence[float]
    packed: Sequence[float]

    def ratios(self, ours: Sequence[float]) -> list[float]:
        """Return the ratio of each repetition, since what disturbs a repetition disturbs both."""
        return [one / by_git for one, by_git in zip(ours, self.git, strict=True)]

    @property
    def holds(self) -> bool:
        """Return whether the limit of large repositories is kept."""
        return self.files < _LARGE or statistics.median(self.ratios(self.packed)) <= PACKED_LIMIT


async def measure(sizes: Sequence[int], runs: int) -> list[Figure]:
    """Make worktrees of that many files, in turn by each way."""
    return [await _at(size, runs) for size in sizes]


async def _at(files: int, runs: int) -> Figure:
    with tempfile.TemporaryDirectory(prefix="threadtree-bench-", ignore_cleanup_errors=True) as directory:
        places = [Path(tempfile.mkdtemp(dir=directory)) for _ in range(2)]
        fetched, packed = [await Repository.make(place, files) for place in places]
        async with clone_lock(packed.clone) as lock:
            await pack_whole(lock, "main", 0)
        ways = {
            "git": partial(_by_git, fetched),
            "fetched": partial(_by_bot, fetched),
            "packed": partial(_by_bot, packed),
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        order = list(ways)
        for run in range(runs + 1):  # the first one warms up
            await asyncio.to_thread(os.sync)  # what the one before wrote and deleted must not slow this one down
            made = {name: await ways[name](run) for name in (order if run % 2 else reversed(order))}
            for name, (repository, path, seconds) in made.items():
                git(repository.clone.path, "worktree", "remove", "--force", "--force", str(path))
                taken[name] += [1000 * seconds] if run else []
        return Figure(files, **taken)


async def _by_git(repository: Repository, number: int) -> tuple[Repository, Path, float]:
    path = repository.data_dir / f"by-git-{number}"
    main = "refs/remotes/origin/main"
    return repository, path, git(repository.clone.path, "worktree", "add", "-q", "--detach", str(path), main)


async def _by_bot(repository: Repository, number: int) -> tuple[Repository, Path, float]:
    begin = time.perf_counter()
    path = await repository.worktree(number + 1)
    return repository, path, time.perf_counter() - begin


def report(figures: Sequence[Figure]) -> bool:
    """Print the medians, and how far the ratios spread; return whether all keep the limits."""
    print(f"{'files':>8} {'git worktree add':>17} {'fetched':>9} {'packed':>9}   ratios")
    for one in figures:
        ways = (one.git, one.fetched, one.packed)
        by_git, *ours = (f"{statistics.median(way):9.0f}" for way in ways)
        found = [one.ratios(way) for way in ways[1:]]
        ratios = " ".join(f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})" for each in found)
        print(f"{one.files:8} {by_git:>17} {' '.join(ours)}   {ratios}{'' if one.holds else '  over the limit'}")
    return all(one.holds for one in figures)
