"""The end of a run, told twice: to the thread, and in the metadata beside the worktree."""

from collections.abc import Sequence
from pathlib import Path

from bot.reply.voice import Report
from bot.run.checkout import Ready
from bot.run.delivering import compare_url
from bot.run.ends import End
from bot.run.workshop import Workshop
from bot.run.worktrees import metadata
from bot.store.turns import ClaimedTurn, Use
from bot.tracking import Changes


def report_of(
    shop: Workshop, turn: ClaimedTurn, end: End, notices: Sequence[str], steps: Sequence[str], use: Use
) -> Report:
    """The end as the thread is told of it; a notice said twice is said once."""
    change, changes = end.change, None
    if change.branch and change.after and change.stat:
        url = compare_url(shop, turn, change)
        stat = change.stat
        changes = Changes(change.branch, url, change.commits, stat.files, stat.insertions, stat.deletions)
    return Report(
        turn_id=turn.id,
        target=turn.target,
        state=end.state,
        reason=end.reason,
        answer=end.answer,
        changes=changes,
        patch=change.patch or None,
        notices=tuple(dict.fromkeys(notices)),
        duration=shop.clock() - turn.started_at,
        steps=tuple(steps),
        cost_usd=use.cost_usd,
        tokens=use.tokens,
        last_words=end.last_words,
        server_url=shop.server_url,
        secrets=shop.secrets,
    )


def note_in_metadata(shop: Workshop, turn: ClaimedTurn, ready: Ready, end: End | None = None) -> None:
    """What rebuilds the worktree's row, and what was last seen of it, beside its directory. Raises OSError."""
    now = shop.clock()
    path = Path(turn.path)
    known = metadata.read(path)
    before = known if isinstance(known, metadata.Metadata) else None
    metadata.write(
        path,
        metadata.Metadata(
            id=str(turn.worktree_id),
            platform=turn.repository.platform,
            repository_id=turn.repository.id,
            full_name=turn.repository.full_name,
            conversations=turn.sharers,
            branch=ready.branch,
            base=ready.base_branch,
            node=shop.node,
            created_at=before.created_at if before else now,
            updated_at=now,
            execution_count=(before.execution_count if before else 0) + (1 if end else 0),
            last_error=end.reason if end and end.state != "done" else None,
        ),
    )
