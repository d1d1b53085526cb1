"""The repository's check runs in the sandbox on a commit, in a checkout and a HOME that no agent has written.

What makes it fast (packages, environments, caches) comes from the last run on the default branch: a run gets a copy of
what that one left in HOME and in files that git ignores.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import NoReturn, TypeVar

import structlog

from bot import refs
from bot.check.reports import Report, read_pictures, read_reports
from bot.failpoints import reached
from bot.locks import try_lock
from bot.model import WorktreeRow
from bot.node.context import NodeContext
from bot.node.room import require_room
from bot.node.setup_script import SCRIPT as SETUP
from bot.node.setup_script import run_in_worktree, script_on, set_up
from bot.sandbox import trash
from bot.sandbox.bwrap import Bind
from bot.tasks import unless
from bot.thread import notices
from bot.tree import CheckoutRefused, GitError, GitProblem, Tree

T = TypeVar("T")
REPORTS = "THREADTREE_REPORTS"
"""The variable that names the folder for reports and pictures."""
_CACHE, _FILES, _PICTURES = "THREADTREE_CACHE", "ignored-files", "pictures"
_COPY_SECONDS = 120.0
# It runs in the sandbox, where a link in the checkout leads nowhere else. Names in the list begin with "./".
_COPY = f"""\
#!/bin/sh
set -e
checkout=$PWD
cp -a --reflink=auto "${_CACHE}/home/." "$HOME/"
cd "${_CACHE}/tree"
xargs -0 -r cp -a --reflink=auto --no-clobber --parents -t "$checkout" -- < ../{_FILES}
""".encode()
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Place:
    """Where one check of a repository runs at a time. Its paths are the same in each run: environments name them."""

    path: Path

    @property
    def tree(self) -> Path:
        """The checkout, while a check runs."""
        return self.path / "tree"

    def cache(self, variables: Mapping[str, str]) -> Path:
        """Return what is kept of the last run on the default branch. A run without the repository's variables must not
        see what one with them left.
        """
        return self.path / ("cache-with-variables" if variables else "cache")


@dataclass(frozen=True, slots=True)
class Check:
    """What runs: the `script` of the default branch, with the repository's variables, in a place of the repository."""

    ctx: NodeContext
    place: Place
    script: bytes
    variables: Mapping[str, str]

    @property
    def cache(self) -> Path:
        """Where the last run on the default branch is kept, if there was one."""
        return self.place.cache(self.variables)


@dataclass(frozen=True, slots=True)
class Checked:
    """How a run ended: `failure` is a clause, None where the script succeeded; `output` is the end of what it wrote.

    `pictures_before` are those of the last run on the default branch, by the names of the pictures that look otherwise.
    """

    failure: str | None
    output: str
    seconds: float
    report: Report
    pictures: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    unshown: int = 0
    pictures_before: Mapping[str, bytes] = field(default_factory=dict, repr=False)


class _DiskFullError(OSError):
    """A script holds more than its disk space."""


@contextmanager
def place_for(ctx: NodeContext, folder: str) -> Iterator[Place]:
    """Yield the first place of the repository of this folder in which no check runs. Raises OSError."""
    paths = (ctx.checks / folder / str(number) for number in count())
    path, lock = next((path, lock) for path in paths if (lock := _lock(path)) is not None)
    try:
        yield Place(path)
    finally:
        os.close(lock)


async def check_commit(check: Check, worktree: WorktreeRow, commit: str, *, keep: bool = False) -> Checked:
    """Run the check on a commit that the worktree's clone has, in a checkout that is removed again; the set-up script
    of the default branch runs there first, where there is one.

    `keep`: what it leaves in HOME and in ignored files is for later runs. Only for commits of the default branch.
    Raises GitError, InvalidNameError, OSError, UnsafeCommandError.
    """
    ctx, place = check.ctx, check.place
    home, row = place.path / "home", replace(worktree, path=ctx.stored(place.tree))
    await clear(ctx, place, worktree.folder)
    async with Tree(ctx.clone(worktree.folder), place.tree).open() as tree:
        tree.lets_go = True
        require_room(ctx)
        made = await tree.make_again(None, commit, refs.rescue_ref(str(worktree.id), ctx.clock()))
        if isinstance(made, CheckoutRefused):
            raise GitError(GitProblem.OTHER, "worktree", made.next_step)
        await tree.fill(commit)
        await ctx.fill_submodules(tree, worktree, commit)
    try:
        reached("commit-checked-out")
        home.mkdir(mode=0o700)
        await _copy_cache(check, row, home)
        default = worktree.repository.default_branch
        if ctx.rules.setup and default is not None:
            script = await script_on(ctx.clone(worktree.folder), default, SETUP)
            if isinstance(script, bytes):
                await _within_disk(lambda full: set_up(ctx, row, home, script, full, check.variables))
        done = await _run(check, row, home)
        if keep:
            await _keep(check, row, home, done.pictures)
        return replace(done, pictures_before=await asyncio.to_thread(_pictures_before, check, done.pictures))
    finally:
        await asyncio.shield(clear(ctx, place, worktree.folder))


async def clear(ctx: NodeContext, place: Place, folder: str) -> None:
    """Remove what a check made in a place, also one that was cut off; not what is kept. Raises GitError, OSError."""
    async with Tree(ctx.clone(folder), place.tree).open() as tree:
        for gone in (await asyncio.to_thread(tree.unlink, ctx.clock(), whole=False)).trashed:
            await trash.delete(gone)
    for name in ("home", "reports", "new-cache"):
        await _empty(ctx, place.path / name)


async def expire_places(ctx: NodeContext, before: float) -> None:
    """Clear the places in which a check was cut off; delete what is kept there since `before`, in seconds since 1970.

    A place that cannot be cleared holds up no other one.
    """
    for path in await asyncio.to_thread(lambda: list(ctx.checks.glob("*/*/*/"))):
        folder = f"{path.parent.parent.name}/{path.parent.name}"
        try:
            await _expire_place(ctx, Place(path), folder, before)
        except (GitError, OSError, refs.InvalidNameError) as problem:
            _log.warning("prune-error", folder=f"checks/{folder}", error=str(problem))


async def _expire_place(ctx: NodeContext, place: Place, folder: str, before: float) -> None:
    if (lock := _lock(place.path)) is None:
        return
    try:
        await clear(ctx, place, folder)
        kept = await asyncio.to_thread(list, place.path.glob("cache*"))
        if all(cache.stat().st_mtime < before for cache in kept):
            await _empty(ctx, place.path)
    finally:
        os.close(lock)


def _lock(path: Path) -> int | None:
    """Return the lock of a place, which is made; None where a check runs, or it is being removed. Raises OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = path / "lock"
    held = try_lock(file)
    if held is None or (file.exists() and os.path.samestat(os.fstat(held), file.stat())):
        return held
    os.close(held)
    return None


async def _copy_cache(check: Check, row: WorktreeRow, home: Path) -> None:
    """Copy what the last run on the default branch left into HOME and the checkout. Without that a run takes longer."""
    if not check.cache.exists():
        return
    given, shown = {_CACHE: str(check.cache)}, (Bind(check.cache),)
    failure, output = await _within_disk(
        lambda full: run_in_worktree(check.ctx, row, home, _COPY, _COPY_SECONDS, full, given, shown)
    )
    if failure is not None:
        _log.warning("check-cache-not-copied", problem=failure, output=output)


def _pictures_before(check: Check, pictures: Mapping[str, bytes]) -> dict[str, bytes]:
    found = dict[str, bytes]()
    for name, now in pictures.items():
        # The number before the name is the place among all, which may have changed.
        before = next((check.cache / _PICTURES).glob(f"*-{name.partition('-')[2]}"), None)
        if before is not None and (data := before.read_bytes()) != now:
            found[name] = data
    return found


async def _keep(check: Check, row: WorktreeRow, home: Path, pictures: Mapping[str, bytes]) -> None:
    """Keep what a run left, in place of what was kept before."""
    ctx, new = check.ctx, check.place.path / "new-cache"
    async with ctx.tree(row).open() as tree:
        checkout = await tree.checkout()
        await checkout.unblock()
        names = await checkout.ignored()
    new.mkdir(mode=0o700)
    (new / _FILES).write_bytes(b"".join(b"./%s\0" % os.fsencode(name) for name in names))
    (new / _PICTURES).mkdir()
    for name, data in pictures.items():
        (new / _PICTURES / name).write_bytes(data)
    await _empty(ctx, check.cache)
    for source, target in ((home, new / "home"), (check.place.tree, new / "tree"), (new, check.cache)):
        os.rename(source, target)  # noqa: PTH104 - takes no time


async def _run(check: Check, worktree: WorktreeRow, home: Path) -> Checked:
    ctx, reports = check.ctx, check.place.path / "reports"
    reports.mkdir(mode=0o700)
    began = time.monotonic()
    given = {**check.variables, REPORTS: str(reports)}
    shown = (Bind(reports, writable=True),)
    try:
        failure, output = await _within_disk(
            lambda full: run_in_worktree(ctx, worktree, home, check.script, ctx.check_seconds, full, given, shown)
        )
    except _DiskFullError as error:
        failure, output = str(error), ""
    seconds = time.monotonic() - began
    reached("check-ended")
    report = await asyncio.to_thread(read_reports, reports)
    pictures, unshown = await asyncio.to_thread(read_pictures, reports)
    return Checked(failure, output, seconds, report, pictures, unshown)


async def _within_disk(run: Callable[[Callable[[int], None]], Awaitable[T]]) -> T:
    """Return the result of a run that calls what it is given where its disk is full: then raise _DiskFullError."""
    full: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def filled() -> NoReturn:
        raise _DiskFullError(notices.setup_disk_full(await full))

    return await unless(filled(), run(full.set_result))


async def _empty(ctx: NodeContext, folder: Path) -> None:
    """Remove a folder that a check may have filled. Raises OSError."""
    if (gone := await asyncio.to_thread(trash.move_to_trash, ctx.data_dir, folder)) is not None:
        await trash.delete(gone)
