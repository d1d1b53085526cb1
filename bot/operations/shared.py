"""Common parts of the operations: their end, and the size and the record of a rescue."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import structlog

from bot.clones import trash
from bot.clones.clone import Clone
from bot.git.errors import GitError
from bot.github.errors import GitHubError
from bot.messages import notices, worktree_replies
from bot.model import WorktreeRow
from bot.node.context import NodeContext
from bot.rescue.message import RescueLabel
from bot.rescue.save import Rescued
from bot.rescue.stored import rescue_bytes
from bot.store import rescues
from bot.store.database import Connection
from bot.store.operations import ClaimedOperation

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an operation.

    `words` are the answer, `notice` goes into the reply of the turn that it was done for, `write` changes the rows that
    change with the end, `trashed` are bytes to be deleted afterwards.
    """

    state: Literal["done", "failed"]
    words: str
    notice: str | None = None
    write: Callable[[Connection], Awaitable[None]] | None = None
    trashed: tuple[Path, ...] = ()


def failed(operation: ClaimedOperation, why: str, next_step: str | None = None) -> Outcome:
    """Return the outcome of an operation that was not done; `next_step` is a whole sentence."""
    words = worktree_replies.not_done(operation.kind, why, next_step)
    return Outcome("failed", words, notices.not_restored_before_turn(why))


async def merged_head(ctx: NodeContext, worktree: WorktreeRow) -> str | None:
    """Return the last commit that GitHub merged from the worktree's branch; None where it cannot be asked."""
    if ctx.github is None or worktree.branch is None:
        return None
    try:
        return await ctx.github.merged_head(worktree.repository, worktree.branch)
    except GitHubError as error:
        _log.warning("merged-unknown", path=worktree.path, branch=worktree.branch, error=str(error))
        return None


async def rescue_size(clone: Clone, rescue: Rescued | None, kept: Path | None) -> int:
    """Return the bytes of a rescue, commit and directory, as far as they can be measured."""
    size = await asyncio.to_thread(trash.size_of, kept) if kept else 0
    try:
        return size + (await rescue_bytes(clone, rescue.ref) if rescue else 0)
    except GitError as error:
        _log.warning("rescue-not-measured", error=str(error))
        return size


async def record_rescue(
    connection: Connection, label: RescueLabel, rescue: Rescued | None, kept: Path | None, size: int
) -> None:
    """Record the commit, the directory, or both; `size` is what `rescue_size` returned. Recording twice is one row."""
    note = partial(rescues.record, connection, label.worktree_id, label.at, conversations=label.conversations)
    if kept is not None:
        await note(kept=kept.name, size=size)
    if rescue is not None:
        await note(ref=rescue.ref, files=rescue.files, commits=rescue.commits, size=0 if kept else size)
