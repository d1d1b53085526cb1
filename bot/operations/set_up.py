"""After an operation made a checkout: the repository's set-up script runs there, and then the operation ends."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import structlog

from bot.locks import try_lock
from bot.node.context import NodeContext
from bot.node.setup_script import SetUp, script_of, set_up
from bot.node.transactions import persist
from bot.node.variables import variables_in
from bot.operations.shared import Outcome
from bot.store import operations, worktrees
from bot.store.failures import log_failure
from bot.store.operations import Operation
from bot.store.turns import ClaimLostError
from bot.tasks import unless
from bot.thread import notices, worktree_replies
from bot.tree.clone.clone import CloneLock
from bot.tree.git.errors import GitError

STOP_POLL_SECONDS = 2.0
_log = structlog.get_logger()


class _StoppedError(Exception):
    """The script is to end, for the reason in this clause."""


async def script_for(ctx: NodeContext, lock: CloneLock, operation: Operation, *, fresh: bool) -> bytes | SetUp | None:
    """Return the script that is to run in the worktree, or why it does not run; None where there is none.

    `fresh`: nothing is left of an earlier checkout.
    """
    if not ctx.rules.setup or not operation.home_of:
        return None
    try:
        found = await script_of(lock)
    except GitError as problem:
        return SetUp(notices.setup_unread(problem))
    is_done = not fresh and await persist(ctx.pool, worktrees.is_set_up, operation.worktree.id)
    return SetUp(None) if found is not None and is_done else found


@contextmanager
def only_here(directory: Path) -> Iterator[None]:
    """Keep others out while a script runs in a worktree: a process that was suspended goes on with it when it wakes up.

    The kernel ends this with the process. Raises ClaimLostError while another task or process is in such a block.
    """
    descriptor = try_lock(directory, is_directory=True)
    if descriptor is None:
        raise ClaimLostError
    try:
        yield
    finally:
        os.close(descriptor)


async def run_script(ctx: NodeContext, operation: Operation, script: bytes) -> SetUp:
    """Run the script until it ends, fills its disk, or is to stop. Raises ClaimLostError if the operation has ended."""
    full: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def watch() -> NoReturn:
        while not full.done():
            try:
                is_stopping = await operations.is_stopping(ctx.pool, operation.id, operation.worktree.id)
            except ClaimLostError:
                raise
            except Exception as problem:  # noqa: BLE001 - a look that fails costs nobody the script
                log_failure("setup-watch", problem)
            else:
                if is_stopping:
                    raise _StoppedError(notices.SETUP_STOPPED)
            await asyncio.wait({full}, timeout=STOP_POLL_SECONDS)
        raise _StoppedError(notices.setup_disk_full(full.result()))

    try:
        given = variables_in(ctx.data_dir, operation.worktree)
        ctx.redactor.know(given.values())
        running = set_up(ctx, operation.worktree, ctx.home(operation.home_of), script, full.set_result, given)
        return await unless(watch(), running)
    except ClaimLostError:
        raise
    except _StoppedError as stopped:
        return SetUp(str(stopped))
    except Exception as problem:  # noqa: BLE001 - also a bug: the script would begin again and again
        _log.exception("setup-failed")
        return SetUp(notices.setup_not_startable(str(problem)))


def with_setup(operation: Operation, outcome: Outcome, done: SetUp) -> Outcome:
    """Return the outcome with what became of the script, and with the output of one that failed as `fold`."""
    words = [outcome.words, worktree_replies.was_set_up(done.failure, done.seconds)]
    words += [notices.setup_left(done.left, "the next")] if done.left else []
    fold = notices.setup_output(done.output) if done.output else ""
    ran = done.failure is None and done.seconds is not None
    write = partial(worktrees.record_setup, worktree_id=operation.worktree.id) if ran else outcome.write
    return replace(outcome, words="\n\n".join(words), fold=fold, write=write)
