"""Carry out operations on worktrees, for a worker and for the command line, and end each with a sentence."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import assert_never

import structlog
from structlog.contextvars import bound_contextvars

from bot import counters
from bot.failpoints import reached
from bot.git.errors import GitError
from bot.git.refs import InvalidNameError
from bot.github.errors import GitHubError
from bot.messages import worktree_replies
from bot.messages.formatting import plain
from bot.model import ThreadRef
from bot.node.context import NodeContext
from bot.node.transactions import persist
from bot.operations.create import create_worktree
from bot.operations.drop import drop_for_operator
from bot.operations.pull_request import open_pull_request
from bot.operations.remove import delete_trashed, remove_decided, remove_worktree
from bot.operations.reset import reset_worktree
from bot.operations.restore import restore_worktree
from bot.operations.shared import Outcome, failed
from bot.reply import thread_comments
from bot.store import conversations, operations, turns
from bot.store.database import Connection
from bot.store.operations import ClaimedOperation, OperationStatus
from bot.store.turns import ClaimLostError

POLL_SECONDS = 0.5
WAITING = "Waiting for a worker, which carries this out or what was requested before it."
ABANDONED = "It was cancelled before it began."

Progress = Callable[[str], None]
_log = structlog.get_logger()


async def work_in(ctx: NodeContext, worktree_id: int) -> None:
    """Do what is to be done in a worktree, for its job: remove it where that is decided, or carry out one operation.

    The end of the operation enqueues the job for the next one. Raises what a database raises that is away.
    """
    await remove_decided(ctx, worktree_id)
    operation = await persist(ctx.pool, operations.claim, ctx.node, worktree_id)
    if operation is not None:
        await carry_out(ctx, operation)


async def carry_out(ctx: NodeContext, operation: ClaimedOperation) -> None:
    """Return when the operation has ended, or its claim was lost.

    After any other end, a cancellation or a bug in its statements, the next job of its worktree claims it again.
    """
    with bound_contextvars(**_log_context(operation)):
        await _carry_out(ctx, operation)


def _log_context(operation: ClaimedOperation) -> dict[str, object]:
    """Return what each line of the log about the operation has."""
    named: dict[str, object] = {"operation": operation.id, "worktree": operation.worktree.id}
    if operation.number is None:
        return named
    return {**named, "conversation": f"{operation.worktree.repository.full_name}#{operation.number}"}


async def _carry_out(ctx: NodeContext, operation: ClaimedOperation) -> None:
    _log.info("operation-started", kind=operation.kind, asked_by=operation.requested_by)
    try:
        outcome = await _to_an_outcome(ctx, operation)
        reached("operation-carried-out")
        await persist(ctx.pool, _finish, ctx, operation, outcome)
        _log.info("operation-ended", state=outcome.state, outcome=outcome.words)
        await delete_trashed(outcome.trashed)
    except ClaimLostError:
        counters.LOST_CLAIMS.labels("operation").inc()
        _log.warning("claim-lost")


async def _to_an_outcome(ctx: NodeContext, operation: ClaimedOperation) -> Outcome:
    try:
        return await _perform(ctx, operation)
    except (GitError, GitHubError, InvalidNameError, OSError) as problem:
        _log.warning("operation-failed", problem=str(problem))
        return failed(operation, str(problem))
    except ClaimLostError:
        raise
    except Exception:  # noqa: BLE001 - a bug: logged with its traceback, and the answer says so
        _log.exception("operation-crashed")
        return failed(operation, worktree_replies.own_error(operation.id))


async def _perform(ctx: NodeContext, operation: ClaimedOperation) -> Outcome:
    """Carry it out. Every step can be repeated. Raises GitError, InvalidNameError, OSError."""
    if not operations.fits(operation.kind, operation.worktree.state):
        return failed(operation, f"it is {operation.worktree.state}", "The next request makes a new one.")
    match operation.kind:
        case "create":
            return await create_worktree(ctx, operation)
        case "restore":
            return await restore_worktree(ctx, operation)
        case "remove":
            return await remove_worktree(ctx, operation)
        case "reset":
            return await reset_worktree(ctx, operation)
        case "pull-request":
            return await open_pull_request(ctx, operation)
        case "drop":
            return await drop_for_operator(ctx, operation)
        case _:
            assert_never(operation.kind)


async def _finish(connection: Connection, ctx: NodeContext, operation: ClaimedOperation, outcome: Outcome) -> None:
    """Write the end, the rows that change with it, and the answer, in one transaction."""
    await operations.finish(connection, operation.claim, outcome.state, plain(outcome.words), ctx.node)
    if outcome.write is not None:
        await outcome.write(connection)
    if operation.conversation_id is not None and operation.target is not None:
        thread_ref = ThreadRef(operation.worktree.repository, operation.conversation_id)
        reply_id = operation.reply_id
        await thread_comments.reply(connection, thread_ref, operation.target, outcome.words, instead_of=reply_id)
    if operation.turn_id is not None and outcome.notice is not None:
        await turns.add_notice(connection, operation.turn_id, outcome.notice)
    if operation.kind in ("reset", "remove") or operation.conversation_id is not None:
        # The thread may have been closed meanwhile. What an operator created or restored stays.
        await conversations.release_worktree(connection, operation.worktree.id)


async def execute(
    ctx: NodeContext, run_jobs: Callable[[], Awaitable[None]], operation_id: int, progress: Progress
) -> OperationStatus:
    """Carry out an operation here by `run_jobs`, or wait for a worker; return how it ended.

    `run_jobs` does what waits on this node, also for others, since no worker may run. If this is cancelled before the
    operation began, the operation is abandoned.
    """
    told = False
    try:
        while True:
            await run_jobs()
            status = await persist(ctx.pool, operations.status_of, operation_id)
            if status.state in ("done", "failed"):
                return status
            if not told:
                told = True
                progress(WAITING)
            await asyncio.sleep(POLL_SECONDS)
    except asyncio.CancelledError:
        async with ctx.pool.acquire() as connection:
            await operations.abandon(connection, operation_id, ABANDONED)
        raise
