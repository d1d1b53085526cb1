"""The end of a run: told to the thread, and noted in the metadata beside the worktree."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import structlog
from asyncpg import PostgresError

from bot.clones import metadata
from bot.clones.metadata import Metadata
from bot.messages.tracking import Changes
from bot.reply.thread_comments import TurnReport
from bot.run.context import TurnContext
from bot.run.publishing import compare_url
from bot.run.result import TurnResult
from bot.store import retention
from bot.store.database import DATABASE_AWAY
from bot.store.turns import ClaimedTurn, Use

_log = structlog.get_logger()


def report_of(
    ctx: TurnContext, turn: ClaimedTurn, end: TurnResult, notices: Sequence[str], steps: Sequence[str], use: Use
) -> TurnReport:
    """The end as the thread is told of it; a notice said twice is said once."""
    change, changes = end.change, None
    if change.branch and change.after and change.stat:
        url = compare_url(ctx, turn, change)
        stat = change.stat
        changes = Changes(change.branch, url, change.commits, stat.files, stat.insertions, stat.deletions)
    return TurnReport(
        turn_id=turn.id,
        target=turn.target,
        state=end.state,
        reason=end.reason,
        answer=end.answer,
        changes=changes,
        patch=change.patch or None,
        notices=tuple(dict.fromkeys(notices)),
        duration=ctx.clock() - turn.started_at,
        steps=tuple(steps),
        cost_usd=use.cost_usd,
        tokens=use.tokens,
        last_words=end.last_words,
        server_url=ctx.server_url,
        secrets=ctx.secrets,
    )


def note_the_end(ctx: TurnContext, turn: ClaimedTurn, end: TurnResult) -> None:
    """One run more, and how it ended, in the metadata of a worktree that is there. Trouble with it is only logged."""
    path = Path(turn.path)
    known = metadata.read(path)
    if not isinstance(known, Metadata) or known.id != str(turn.worktree_id):
        return
    error = None if end.state == "done" else end.reason
    noted = replace(known, updated_at=ctx.clock(), execution_count=known.execution_count + 1, last_error=error)
    try:
        metadata.write(path, noted)
    except OSError as problem:
        _log.warning("metadata-not-written", path=turn.path, problem=str(problem))


async def forget_old_sessions(ctx: TurnContext) -> None:
    """Ended sessions past their time, right after a run. Trouble with it is only logged: a timer does it too."""
    try:
        async with ctx.pool.acquire() as connection:
            await retention.delete_old_sessions(connection, ctx.session_ttl_seconds, ctx.clock())
    except (*DATABASE_AWAY, PostgresError) as problem:
        _log.warning("sessions-not-deleted", problem=type(problem).__name__)
