"""What rebuilds a worktree's row, noted beside its directory whenever something begins there."""

from pathlib import Path

from bot.clones import metadata
from bot.clones.metadata import Metadata
from bot.node.context import NodeContext
from bot.store.operations import ClaimedOperation
from bot.store.turns import ClaimedTurn


def record_use(
    ctx: NodeContext, claimed: ClaimedTurn | ClaimedOperation, branch: str | None, base_branch: str | None
) -> None:
    """Writes down whose worktree it is and on which branch; how often it was used stays as it was. Raises OSError."""
    now, path = ctx.clock(), Path(claimed.path)
    known = metadata.read(path)
    before = known if isinstance(known, Metadata) else None
    metadata.write(
        path,
        Metadata(
            id=str(claimed.worktree_id),
            platform=claimed.repository.platform,
            repository_id=claimed.repository.id,
            full_name=claimed.repository.full_name,
            conversations=claimed.sharers if isinstance(claimed, ClaimedTurn) else claimed.threads,
            branch=branch,
            base=base_branch or claimed.base_branch,
            node=ctx.node,
            created_at=before.created_at if before else now,
            updated_at=now,
            execution_count=before.execution_count if before else 0,
            last_error=before.last_error if before else None,
        ),
    )
