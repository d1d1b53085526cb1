"""Carry out operations on worktrees, for a worker and for the command line, and end each with a sentence."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from typing import assert_never

import structlog
from structlog.contextvars import bound_contextvars

from bot import counters
from bot.failpoints import reached
from bot.model import ThreadRef
from bot.node.context import NodeContext
from bot.node.repository_rules import known_rules
from bot.node.transactions import persist
from bot.operations.create import create_worktree, reset_worktree
from bot.operations.drop import drop_for_operator
from bot.operations.pull_request import describe_pull_request, open_pull_request
from bot.operations.remove import delete_trashed, remove_decided, remove_worktree
from bot.operations.restore import restore_worktree
from bot.operations.set_up import only_here, run_script, script_for, with_setup
from bot.operations.shared import ImpossibleError, Outcome, failed, judged, merged_head
from bot.store import conversations, operations, turns
from bot.store.database import Connection
from bot.store.operations import Operation, OperationStatus
from bot.store.turns import ClaimLostError
from bot.thread import thread_comments, worktree_replies
from bot.thread.formatting import plain
from bot.tree.clone.clone import clone_lock

POLL_SECONDS = 0.5

Progress = Callable[[str], None]
_log = structlog.get_logger()


async def work_in(ctx: NodeContext, worktree_id: int) -> None:
    """Do what is to be done in a worktree, for its job: remove it where that is decided, or carry out one operation.

    The end of the operation enqueues the job for the next one. Raises what a database raises that is away.
    """
    await remove_decided(ctx, worktree_id)
    operation = await persist(ctx.pool, operations.begin, ctx.node, worktree_id)
    if operation is not None:
        await carry_out(ctx, operation)


async def carry_out(ctx: NodeContext, operation: Operation) -> None:
    """Return when the operation has ended, here or by another process.

    After any other end, a cancellation or a bug in its statements, the next job of its worktree goes on with it.
    """
    ctx = ctx.with_rules(await persist(ctx.pool, known_rules, ctx.rules, operation.worktree.repository))
    named: dict[str, object] = {"operation": operation.id, "worktree": operation.worktree.id}
    if operation.number is not None:
        named["conversation"] = f"{operation.worktree.repository.full_name}#{operation.number}"
    with bound_contextvars(**named):
        _log.info("operation-started", kind=operation.kind, asked_by=operation.requested_by)
        try:
            outcome = await _to_its_end(ctx, operation)
        except ClaimLostError:
            counters.LOST_CLAIMS.labels("operation").inc()
            _log.warning("claim-lost")
            return
        _log.info("operation-ended", state=outcome.state, outcome=outcome.words)
    await delete_trashed(outcome.trashed)


async def _to_its_end(ctx: NodeContext, operation: Operation) -> Outcome:
    """Carry it out and write its end, under the clone's lock; a set-up script runs in between, without the lock."""
    with ExitStack() as alone:
        async with AsyncExitStack() as held:
            outcome = await _to_an_outcome(ctx, operation, held)
            reached("operation-carried-out")
            script = outcome.script
            if isinstance(script, bytes):
                alone.enter_context(only_here(ctx.directory(operation.worktree.path)))
                operation = await persist(ctx.pool, _note_made, ctx, operation, outcome)
            else:
                outcome = with_setup(operation, outcome, script) if script is not None else outcome
                await persist(ctx.pool, _finish, ctx, operation, outcome)
        if isinstance(script, bytes):
            reached("operation-noted")
            done = await run_script(ctx, operation, script)
            outcome = with_setup(operation, replace(outcome, write=None), done)
            await persist(ctx.pool, _finish, ctx, operation, outcome)
    return outcome


async def _to_an_outcome(ctx: NodeContext, operation: Operation, held: AsyncExitStack) -> Outcome:
    try:
        return await _perform(ctx, operation, held)
    except ImpossibleError as impossible:
        return Outcome("failed", str(impossible), str(impossible))
    except ClaimLostError:
        raise
    except Exception as problem:  # noqa: BLE001 - a bug is told in the answer too
        return failed(operation, judged(problem, operation.id))


async def _perform(ctx: NodeContext, operation: Operation, held: AsyncExitStack) -> Outcome:
    """Carry it out, under the clone's lock, which is held until its end is written: no other process does it too.

    Every step can be repeated. Raises GitError, InvalidNameError, OSError.
    """
    if not operations.fits(operation.kind, operation.worktree.state):
        return failed(operation, *worktree_replies.of_state(operation.worktree.state))
    kind = operation.kind
    if kind == "pull-request":  # which waits for GitHub; GitHub allows no second one
        return await open_pull_request(ctx, operation)
    if kind == "describe":  # which waits for the agent; what another process writes is the same
        return await describe_pull_request(ctx, operation)
    merged = await merged_head(ctx, operation.worktree) if kind in ("remove", "reset") else None
    lock = await held.enter_async_context(clone_lock(ctx.clone(operation.worktree.folder)))
    # As another process may have left it: one that carried it out while this one was suspended.
    now = await persist(ctx.pool, operations.begun, ctx.node, operation.worktree.id)
    if now is None or now.id != operation.id:
        raise ClaimLostError
    operation = now
    if operation.outcome is not None:  # an earlier attempt was cut off while the script ran
        return Outcome("done", operation.outcome, script=await script_for(ctx, lock, operation, fresh=True))
    # The files are others from now on: none of them is of a check that was cut off.
    ctx.check_note(operation.worktree.id).unlink(missing_ok=True)
    match kind:
        case "create":
            return await create_worktree(ctx, lock, operation)
        case "restore":
            return await restore_worktree(ctx, lock, operation)
        case "remove":
            return await remove_worktree(ctx, lock, operation, merged)
        case "reset":
            return await reset_worktree(ctx, lock, operation, merged)
        case "drop":
            return await drop_for_operator(ctx, lock, operation)
        case _:
            assert_never(kind)


async def _note_made(connection: Connection, ctx: NodeContext, operation: Operation, outcome: Outcome) -> Operation:
    """Write what was done, and say that the script runs, unless an earlier attempt has; return the operation as it is.

    Raises ClaimLostError.
    """
    now = await operations.begun(connection, ctx.node, operation.worktree.id)
    if now is None or now.id != operation.id:
        raise ClaimLostError
    if now.outcome is not None:
        return now
    await operations.note_made(connection, now.id, outcome.words)
    if outcome.write is not None:
        await outcome.write(connection)
    reply_id = await _answer(connection, now, f"{outcome.words}\n\n{worktree_replies.SETTING_UP}")
    return replace(now, reply_id=reply_id)


async def _finish(connection: Connection, ctx: NodeContext, operation: Operation, outcome: Outcome) -> None:
    """Write the end, the rows that change with it, and the answer, in one transaction."""
    await operations.finish(connection, operation, outcome.state, plain(outcome.words), ctx.node)
    if outcome.write is not None:
        await outcome.write(connection)
    await _answer(connection, operation, "\n\n".join(filter(None, (outcome.words, outcome.fold))))
    if operation.turn_id is not None and outcome.notice is not None:
        await turns.add_notice(connection, operation.turn_id, outcome.notice)
    if operation.kind == "describe" and ctx.purge_on_success:  # its turn left the files for it
        await conversations.release_worktree(connection, operation.worktree.id, "purged")
    if operation.kind in ("reset", "remove") or operation.conversation_id is not None:
        # The thread may have been closed meanwhile. What an operator created or restored stays.
        await conversations.release_worktree(connection, operation.worktree.id)


async def _answer(connection: Connection, operation: Operation, words: str) -> int | None:
    """Answer the thread that asked, in the comment that tells of the operation already; return the comment's row."""
    if operation.conversation_id is None or operation.target is None:
        return None
    thread_ref = ThreadRef(operation.worktree.repository, operation.conversation_id)
    reply_id = await thread_comments.reply(
        connection, thread_ref, operation.target, words, instead_of=operation.reply_id
    )
    await operations.note_reply(connection, operation.id, reply_id)
    return reply_id


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
                progress(worktree_replies.WAITING)
            await asyncio.sleep(POLL_SECONDS)
    except asyncio.CancelledError:
        await operations.abandon(ctx.pool, operation_id, worktree_replies.CANCELLED)
        raise
