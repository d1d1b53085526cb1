"""The repository's check runs in the sandbox: on the result of a turn in its worktree, or on a commit in a new one."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import NoReturn, TypeVar

from bot.check.reports import Report, read_pictures, read_reports
from bot.failpoints import reached
from bot.model import WorktreeRow
from bot.node.context import NodeContext
from bot.node.room import require_room
from bot.node.setup_script import SCRIPT as SETUP
from bot.node.setup_script import run_in_worktree, script_on, set_up
from bot.sandbox.cage import Bind
from bot.sandbox.untrusted_files import leads_out, remove_untrusted, status_of_untrusted
from bot.tasks import unless
from bot.thread import notices
from bot.tree.clone import trash
from bot.tree.clone.checkout import Checkout, require_checkout
from bot.tree.clone.clone import CheckoutRefused, CloneLock, clone_lock
from bot.tree.create import recreate
from bot.tree.git import refs
from bot.tree.git.errors import GitError, GitProblem
from bot.tree.lfs.objects import provide
from bot.tree.lfs.pointers import filter_lines
from bot.tree.remove import unlink_worktree

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
    async with clone_lock(ctx.clone(worktree.folder)) as lock:
        before = await (await require_checkout(lock, ctx.directory(worktree.path))).changed_files()
    note = ctx.check_note(worktree.id)
    note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    note.write_bytes(os.fsencode("\0".join([head, str(began), *before])))

    async def take_away() -> tuple[str, ...]:
        async with clone_lock(ctx.clone(worktree.folder)) as lock:
            return await undo(ctx, lock, worktree)

    try:
        done = await _run(check, worktree, ctx.home(check.conversation_id))
    finally:
        # Also where it was stopped.
        left = await asyncio.shield(take_away())
    return replace(done, left=left)


async def undo(ctx: NodeContext, lock: CloneLock, worktree: WorktreeRow) -> tuple[str, ...]:
    """Take away what a check left in the worktree, also one that was cut off; do nothing where none began. Return the
    names of the files that are still there. Raises GitError, OSError.
    """
    note = ctx.check_note(worktree.id)
    if not note.exists():
        return ()
    head, began, *before = os.fsdecode(note.read_bytes()).split("\0")
    checkout = await require_checkout(lock, ctx.directory(worktree.path))
    await checkout.unblock()
    left = await _undo(checkout, worktree.branch, head, set(before), float(began))
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
    async with clone_lock(ctx.clone(folder)) as held:
        lock = replace(held, lets_go=True)
        require_room(ctx)
        await _remove(ctx, lock, path)
        made = await recreate(lock, path, None, commit, refs.rescue_ref(str(worktree.id), ctx.clock()))
        if isinstance(made, CheckoutRefused):
            raise GitError(GitProblem.OTHER, "worktree", made.next_step)
        if lock.clone.git.lfs and await filter_lines(lock.clone, commit):
            await provide(await require_checkout(lock, path), commit)
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
    async with clone_lock(ctx.clone(folder)) as lock:
        await _remove(ctx, lock, path)


async def _remove(ctx: NodeContext, lock: CloneLock, path: Path) -> None:
    for gone in (await asyncio.to_thread(unlink_worktree, lock, path, ctx.clock(), whole=False)).trashed:
        await trash.delete(gone)
    _remove_empty(path.parent)


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


async def _undo(checkout: Checkout, branch: str | None, head: str, before: set[str], began: float) -> tuple[str, ...]:
    """Give a worktree, in which nothing but the files in `before` differed from the commit `head`, that state again.

    Files that were there when the check began, as the kernel tells their last change, are never deleted: a check that
    changes what git ignores would else delete somebody's work. Return the names of what still differs.
    """
    if (checkout.head.commit, checkout.head.branch) != (head, branch):
        # What is on the branch next is taken for the work that was checked: whatever the check committed, and wherever.
        where = ("symbolic-ref", "HEAD", refs.local(branch)) if branch else ("update-ref", "--no-deref", "HEAD", head)
        await checkout.git(*where)
        await checkout.git("reset", "--quiet", "--soft", head)
    changed = [one for one in await checkout.changes() if one.name not in before]
    tracked = b"".join(os.fsencode(one.name) + b"\0" for one in changed if one.staged != "?")
    if tracked:
        restore = ("restore", "--quiet", "--source=HEAD", "--staged", "--worktree")
        await checkout.git(*restore, "--pathspec-from-file=-", "--pathspec-file-nul", input=tracked, check=False)
        changed = [one for one in await checkout.changes() if one.name not in before]
    left = []
    hides = any(PurePath(one.name).name == ".gitignore" for one in changed)
    for one in changed:
        if one.product is not None:
            continue
        is_file = one.staged == "?" and not one.name.endswith("/") and not leads_out(one.name)
        status = status_of_untrusted(checkout.path, PurePath(one.name)) if is_file else None
        if status is None or hides or status.st_ctime < began:
            left.append(one.name)
        else:
            await asyncio.to_thread(remove_untrusted, checkout.path, PurePath(one.name))
    return tuple(left)
