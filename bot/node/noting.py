"""What rebuilds a worktree's row, noted beside its directory whenever something begins there."""

from pathlib import Path

from bot.clones import metadata
from bot.clones.metadata import Metadata
from bot.model import WorktreeRow
from bot.node.context import NodeContext


def record_use(ctx: NodeContext, worktree: WorktreeRow, branch: str | None, base_branch: str | None) -> None:
    """Writes down whose worktree it is and on which branch; how often it was used stays as it was. Raises OSError."""
    now, path = ctx.clock(), Path(worktree.path)
    known = metadata.read(path)
    before = known if isinstance(known, Metadata) else None
    metadata.write(
        path,
        Metadata(
            id=str(worktree.id),
            platform=worktree.repository.platform,
            repository_id=worktree.repository.id,
            full_name=worktree.repository.full_name,
            conversations=worktree.conversations,
            branch=branch,
            base=base_branch or worktree.base_branch,
            node=ctx.node,
            created_at=before.created_at if before else now,
            updated_at=now,
            execution_count=before.execution_count if before else 0,
            last_error=before.last_error if before else None,
        ),
    )
