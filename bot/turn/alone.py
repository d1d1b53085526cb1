"""Turns that work on a worktree itself: no checkout is made ready for them, and no agent is asked."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog

from bot.failpoints import reached
from bot.github.errors import GitHubError
from bot.node.variables import variables_in
from bot.refs import InvalidNameError
from bot.store import turns
from bot.store.database import Connection
from bot.thread import worktree_replies
from bot.thread.tracking import TurnResult
from bot.tree import GitError, OpenTree, StoppedError
from bot.turn.setting_up import set_up_alone
from bot.turn.turn_run import TurnRun
from bot.turn.waiting import passing

Write = Callable[[Connection], Awaitable[None]]
"""Writes the rows that change with what was done, in the transaction that saves that."""
_KNOWN = (GitError, GitHubError, InvalidNameError, OSError)
_log = structlog.get_logger()


class ImpossibleError(Exception):
    """What is asked of a worktree cannot be done, for the reason in these words."""


def require_live(run: TurnRun) -> None:
    """Raise ImpossibleError where the worktree was removed meanwhile."""
    if (state := run.turn.worktree.state) == "removed":
        raise ImpossibleError(worktree_replies.not_done(run.kind.name, *worktree_replies.of_state(state)))


@asynccontextmanager
async def work_alone(run: TurnRun) -> AsyncIterator[OpenTree]:
    """Open the tree while a run that still has its claim changes the worktree itself, and is not stopped in it.

    Raises StoppedError, ClaimLostError, OSError.
    """
    async with run.tree.open(run.stop) as tree:
        if await run.write(turns.stop_requested, run.turn.claim) is not None:
            raise StoppedError
        yield tree


async def save_done(run: TurnRun, words: str, write: Write | None = None) -> str:
    """Save what was done, under the clone's lock, and return it: a run that is resumed does not do it again.

    Raises ClaimLostError.
    """
    reached("worktree-changed")

    async def save(connection: Connection) -> None:
        await turns.save_answer(connection, run.turn.claim, words, tuple(run.notices), ())
        if write is not None:
            await write(connection)

    await run.write(save)
    run.answer = words
    reached("outcome-saved")
    return words


def not_done(words: str) -> TurnResult:
    """Return the end of a turn that could not do what was asked, in whole words."""
    return TurnResult("failed", words, whole=words)


async def carry_out(run: TurnRun, work: Callable[[TurnRun], Awaitable[str | TurnResult]]) -> TurnResult:
    """Do the `work`, or go on after it where an earlier run has done it; return the end of the turn.

    Raises StoppedError, ClaimLostError, and problems that pass, for which a thread's turn waits.
    """
    try:
        words = run.answer if run.answer is not None else await work(run)
    except ImpossibleError as impossible:
        return not_done(str(impossible))
    except _KNOWN as problem:
        if run.is_of_thread and passing(problem) is not None:
            raise
        _log.warning("worktree-not-changed", problem=str(problem))
        return not_done(worktree_replies.not_done(run.kind.name, str(problem)))
    if not isinstance(words, str):
        return words
    fold = ""
    if run.kind.sets_up:
        run.variables = variables_in(run.ctx.data_dir, run.turn.worktree)
        run.ctx.redactor.know(run.variables.values())
        said, fold = await set_up_alone(run)
        words = "\n\n".join(filter(None, (words, said)))
    return TurnResult("done", answer=words, whole="\n\n".join(filter(None, (words, fold))))
