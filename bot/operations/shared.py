"""Common parts of the operations: their end, and the size and the record of a rescue."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog

from bot.github.errors import GitHubError
from bot.model import WorktreeRow
from bot.node.context import NodeContext
from bot.node.setup_script import SetUp
from bot.operations.asked import PruneReport, Repaired
from bot.store import rescues
from bot.store.database import Connection
from bot.store.operations import Operation
from bot.thread import notices, worktree_replies
from bot.tree.clone import trash
from bot.tree.clone.clone import Clone
from bot.tree.git.errors import GitError
from bot.tree.git.refs import InvalidNameError
from bot.tree.rescue.message import RescueLabel, rescue_bytes
from bot.tree.rescue.save import Rescued

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an operation.

    `words` are the answer, on a thread with `fold`; `notice` goes into the reply of the turn that it was done for,
    `write` changes the rows that change with the end, `trashed` are bytes to be deleted afterwards. `script` is to run
    before the end, or says why it did not. `report` is for the operator who asked.
    """

    state: Literal["done", "failed"]
    words: str
    notice: str | None = None
    write: Callable[[Connection], Awaitable[None]] | None = None
    trashed: tuple[Path, ...] = ()
    fold: str = ""
    script: bytes | SetUp | None = None
    report: PruneReport | list[Repaired] | None = None


class ImpossibleError(Exception):
    """An operation cannot be done, for the reason in its words, which the turn that it was to be done for tells too."""


def failed(operation: Operation, why: str, next_step: str | None = None) -> Outcome:
    """Return the outcome of an operation that was not done; `next_step` is a whole sentence."""
    words = worktree_replies.not_done(operation.kind, why, next_step)
    return Outcome("failed", words, notices.not_restored_before_turn(why))


def judged(problem: Exception, operation_id: int) -> str:
    """Log why an operation failed, a bug with its traceback; return it as a clause."""
    if isinstance(problem, (GitError, GitHubError, InvalidNameError, OSError)):
        _log.warning("operation-failed", problem=str(problem))
        return str(problem)
    _log.error("operation-crashed", exc_info=problem)
    return worktree_replies.own_error(operation_id)


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
