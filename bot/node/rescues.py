"""What a removal or a reset asks and records of the work that it rescues."""

import asyncio
from pathlib import Path

import structlog

from bot.github.errors import GitHubError
from bot.model import WorktreeRow
from bot.node import rescue_rows as rescues
from bot.node.context import NodeContext
from bot.sandbox import trash
from bot.store.database import Connection
from bot.tree import GitError, OpenClone, Rescued, RescueLabel

_log = structlog.get_logger()


async def merged_head(ctx: NodeContext, worktree: WorktreeRow) -> str | None:
    """Return the last commit that GitHub merged from the worktree's branch; None where it cannot be asked."""
    if ctx.github is None or worktree.branch is None:
        return None
    try:
        return await ctx.github.merged_head(worktree.repository, worktree.branch)
    except GitHubError as error:
        _log.warning("merged-unknown", path=worktree.path, branch=worktree.branch, error=str(error))
        return None


async def rescue_size(opened: OpenClone, rescue: Rescued | None, kept: Path | None) -> int:
    """Return the bytes of a rescue, commit and directory, as far as they can be measured."""
    size = await asyncio.to_thread(trash.size_of, kept) if kept else 0
    try:
        return size + (await opened.rescue_bytes(rescue.ref) if rescue else 0)
    except GitError as error:
        _log.warning("rescue-not-measured", error=str(error))
        return size


async def record_rescue(
    connection: Connection, label: RescueLabel, rescue: Rescued | None, kept: Path | None, size: int
) -> None:
    """Record the commit, the directory, or both; `size` is what `rescue_size` returned. Recording twice is one row."""
    if rescue is None and kept is None:
        return
    await rescues.record(
        connection,
        label.worktree_id,
        label.at,
        ref=rescue.ref if rescue else None,
        kept=kept.name if kept else None,
        files=rescue.files if rescue else 0,
        commits=rescue.commits if rescue else 0,
        size=size,
        conversations=label.conversations,
    )
