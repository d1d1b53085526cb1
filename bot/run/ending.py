"""The visible end of a turn: its row, its answer without secrets, the doorbell, and the worktree's metadata."""

import asyncio
from dataclasses import replace

import structlog
from asyncpg import PostgresError

from bot import failpoints
from bot.clones import metadata
from bot.clones.metadata import Metadata
from bot.messages import tracking
from bot.messages.formatting import plain
from bot.messages.tracking import TurnResult
from bot.redaction import Redactor
from bot.reply import thread_comments
from bot.run.context import TurnContext
from bot.run.turn_run import TurnRun
from bot.store import conversations, retention, turns, worktrees
from bot.store.database import DATABASE_AWAY, Connection
from bot.store.doorbell import ring_for_work
from bot.store.turns import ClaimedTurn

_log = structlog.get_logger()


async def finish(run: TurnRun, end: TurnResult) -> None:
    """Write the end, the answer and the doorbell for the next turn in one transaction. Raises ClaimLostError."""
    ctx, turn = run.ctx, run.turn
    end = replace(
        run.known.added_to(end),
        steps=tuple(run.progress.steps),
        asked=tracking.asked(
            turn.requested_by, ctx.server_url, turn.worktree.repository, turn.number, turn.target, turn.id
        ),
        duration=ctx.clock() - turn.started_at,
    )
    # In a thread: a long answer takes seconds.
    result = await asyncio.to_thread(_without_secrets, end, ctx.redactor)
    parts = await asyncio.to_thread(tracking.final, result, server_url=ctx.server_url)

    async def write(connection: Connection) -> None:
        reason = result.reason and plain(result.reason)
        await turns.end(connection, turn.claim, result.state, reason, result.notices)
        await thread_comments.ended(connection, run.thread_ref, turn.id, turn.target, parts, result.state, ctx.clock())
        await conversations.end_use(connection, turn.conversation_id, turn.worktree.id)
        if ctx.purge_on_success and result.state == "done":
            await worktrees.purge(connection, turn.worktree.id)
        await ring_for_work(connection, ctx.node)

    # Before the end is written: after it the worktree may be removed at any moment.
    await asyncio.to_thread(_record_end, ctx, turn, result)
    await run.write(write)
    failpoints.reached("turn-end-written")
    await _delete_old_sessions(ctx)


def _without_secrets(result: TurnResult, redactor: Redactor) -> TurnResult:
    """Return the end of a turn as it is stored and shown: no text of the agent, of git or of GitHub holds a secret."""
    redact = redactor.redact
    return replace(
        result,
        reason=result.reason and redact(result.reason),
        answer=redact(result.answer),
        changes=redact(result.changes) if isinstance(result.changes, str) else result.changes,
        notices=tuple(map(redact, result.notices)),
        steps=tuple(map(redact, result.steps)),
        read=tuple(map(redact, result.read)),
        last_words=redact(result.last_words),
    )


def _record_end(ctx: TurnContext, turn: ClaimedTurn, end: TurnResult) -> None:
    """Count the run and its error in the worktree's metadata. A failure to do so is only logged."""
    path = ctx.directory(turn.worktree.path)
    known = metadata.read(path)
    if not isinstance(known, Metadata) or known.id != str(turn.worktree.id):
        return
    error = None if end.state == "done" or end.reason is None else plain(end.reason)
    updated = replace(known, updated_at=ctx.clock(), execution_count=known.execution_count + 1, last_error=error)
    try:
        metadata.write(path, updated)
    except OSError as problem:
        _log.warning("metadata-not-written", path=turn.worktree.path, problem=str(problem))


async def _delete_old_sessions(ctx: TurnContext) -> None:
    """Delete ended sessions past their time. A failure to do so is only logged: a timer does it too."""
    try:
        async with ctx.pool.acquire() as connection:
            await retention.delete_old_sessions(connection, ctx.session_ttl_seconds, ctx.clock())
    except (*DATABASE_AWAY, PostgresError) as problem:
        _log.warning("sessions-not-deleted", problem=type(problem).__name__)
