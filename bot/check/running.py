"""The repository's check runs in the sandbox: on the result of a turn in its worktree, or on a commit in a new one."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn, TypeVar

from bot import refs
from bot.check.reports import Report, read_pictures, read_reports
from bot.failpoints import reached
from bot.model import WorktreeRow
from bot.node.context import NodeContext
from bot.node.room import require_room
from bot.node.setup_script import SCRIPT as SETUP
from bot.node.setup_script import run_in_worktree, script_on, set_up
from bot.sandbox import trash
from bot.sandbox.bwrap import Bind
from bot.tasks import unless
from bot.thread import notices
from bot.tree import CheckoutRefused, GitError, GitProblem, OpenTree, Tree

T = TypeVar("T")
REPORTS = "THREADTREE_REPORTS"
"""The variable that names the folder for reports and pictures."""


@dataclass(frozen=True, slots=True)
class Check:
    """What runs: the `script` of the default branch, for a thread's agent, with the repository's variables.

    `scratch` is a folder of the turn, where nothing is between two runs.
    """

    ctx: NodeContext
    conversation_id: int
    script: bytes
    scratch: Path
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Checked:
    """How a run ended: `failure` is a clause, None where the script succeeded; `output` is the end of what it wrote.

    `left`: files that it made or changed, that git does not ignore and that are still there.
    """

    failure: str | None
    output: str
    seconds: float
    report: Report
    left: tuple[str, ...] = ()
    pictures: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    unshown: int = 0


class _DiskFullError(OSError):
    """A script holds more than its disk space."""


async def check_result(check: Check, worktree: WorktreeRow, head: str) -> Checked:
    """Run the check on the commit that is checked out in the worktree, whose claim the caller has; take away again what
    it made or changed of what git does not ignore. Raises GitError, InvalidNameError, OSError, UnsafeCommandError.
    """
    ctx, began = check.ctx, time.time()
    async with ctx.tree(worktree).open() as tree:
        before = await (await tree.checkout()).changed_files()
    note = ctx.check_note(worktree.id)
    note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    note.write_bytes(os.fsencode("\0".join([head, str(began), *before])))

    async def take_away() -> tuple[str, ...]:
        async with ctx.tree(worktree).open() as tree:
            return await undo(ctx, tree, worktree)

    try:
        done = await _run(check, worktree, ctx.home(check.conversation_id))
    finally:
        # Also where it was stopped.
        left = await asyncio.shield(take_away())
    return replace(done, left=left)


async def undo(ctx: NodeContext, tree: OpenTree, worktree: WorktreeRow) -> tuple[str, ...]:
    """Take away what a check left in the worktree, also one that was cut off; do nothing where none began. Return the
    names of the files that are still there. Raises GitError, OSError.
    """
    note = ctx.check_note(worktree.id)
    if not note.exists():
        return ()
    head, began, *before = os.fsdecode(note.read_bytes()).split("\0")
    left = await tree.take_back(worktree.branch, head, set(before), float(began))
    note.unlink()
    _remove_empty(note.parent)
    return left


async def check_commit(check: Check, worktree: WorktreeRow, commit: str) -> Checked:
    """Run the check on another commit of the worktree's clone, in a checkout that is removed again; its set-up script
    runs there first, where there is one. Raises as above.

    Its HOME is a new one: the result is for all threads, and what an agent left in its own must not change it.
    """
    ctx, folder = check.ctx, worktree.folder
    path, home = check.scratch / "base" / folder, check.scratch / "home"
    await _empty(ctx, home)
    row = replace(worktree, path=ctx.stored(path))
    async with Tree(ctx.clone(folder), path).open() as tree:
        tree.lets_go = True
        require_room(ctx)
        await _remove(ctx, tree)
        made = await tree.make_again(None, commit, refs.rescue_ref(str(worktree.id), ctx.clock()))
        if isinstance(made, CheckoutRefused):
            raise GitError(GitProblem.OTHER, "worktree", made.next_step)
        await tree.fill(commit)
    try:
        reached("base-checked-out")
        home.mkdir(mode=0o700)
        default = worktree.repository.default_branch
        if ctx.rules.setup and default is not None:
            script = await script_on(ctx.clone(folder), default, SETUP)
            if isinstance(script, bytes):
                await _within_disk(lambda full: set_up(ctx, row, home, script, full, check.variables))
        return await _run(check, row, home)
    finally:
        await asyncio.shield(remove_checkout(ctx, folder, path))
        await asyncio.shield(_empty(ctx, home))


async def remove_checkout(ctx: NodeContext, folder: str, path: Path) -> None:
    """Remove what `check_commit` made, also where it was cut off. Raises GitError, OSError."""
    async with Tree(ctx.clone(folder), path).open() as tree:
        await _remove(ctx, tree)


async def _remove(ctx: NodeContext, tree: OpenTree) -> None:
    for gone in (await asyncio.to_thread(tree.unlink, ctx.clock(), whole=False)).trashed:
        await trash.delete(gone)
    _remove_empty(tree.path.parent)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        os.removedirs(folder)


async def _run(check: Check, worktree: WorktreeRow, home: Path) -> Checked:
    ctx, reports = check.ctx, check.scratch / "reports"
    # What the agent left is no report: its processes are gone, and the folder is new.
    await _empty(ctx, reports)
    reports.mkdir(mode=0o700, parents=True)
    began = time.monotonic()
    given = {**check.variables, REPORTS: str(reports)}
    shown = (Bind(reports, writable=True),)
    try:
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
        return Checked(failure, output, seconds, report, pictures=pictures, unshown=unshown)
    finally:
        await asyncio.shield(_empty(ctx, reports))


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
        _remove_empty(folder.parent)
