"""Create or reset the checkout of a worktree without a turn: by its row, or from what was rescued of it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from bot.model import Saved
from bot.node.context import NodeContext
from bot.node.room import require_room
from bot.operations.set_up import script_for
from bot.operations.shared import ImpossibleError, Outcome, record_rescue, rescue_size
from bot.store import worktrees
from bot.store.database import Connection
from bot.store.operations import Operation
from bot.thread import reasons, worktree_replies
from bot.tree.clone.checkout import Seen, inspect
from bot.tree.clone.clone import CheckoutRefused, Clone, CloneLock
from bot.tree.clone.fetch import update
from bot.tree.clone.metadata import Metadata
from bot.tree.create import Created, create, recreate
from bot.tree.git import refs
from bot.tree.rescue.message import RescueLabel, read_rescue
from bot.tree.reset import reset

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Made:
    """The checkout is there; `fresh`: it was made now, `again`: it had been lost."""

    branch: str | None
    base_branch: str | None
    fresh: bool
    again: bool


async def create_worktree(ctx: NodeContext, lock: CloneLock, operation: Operation) -> Outcome:
    """Create the checkout, unless it is there."""
    made = await make(ctx, lock, operation)
    script = await script_for(ctx, lock, operation, fresh=made.fresh)
    words = worktree_replies.was_made(made.branch)
    return Outcome("done", words, write=record_checkout(operation, made), script=script)


async def reset_worktree(ctx: NodeContext, lock: CloneLock, operation: Operation, merged: str | None) -> Outcome:
    """Rescue what is there, reset the checkout and end the sessions of its threads."""
    worktree, path = operation.worktree, ctx.directory(operation.worktree.path)
    # The same at each attempt: what an earlier attempt rescued is found again.
    label = RescueLabel(worktree.id, worktree.branch, worktree.conversations, operation.created_at)
    await fetch_for(ctx, lock, operation)
    result = await reset(lock, path, refs.start_again(worktree), label, merged)
    if isinstance(result, CheckoutRefused):
        return Outcome("failed", worktree_replies.refused(operation.kind, result.next_step))
    size = await rescue_size(lock.clone, result.rescue, result.kept)
    await asyncio.to_thread(Metadata.record_use, path, worktree, result.branch, result.base_branch, ctx.clock())

    async def write(connection: Connection) -> None:
        await record_rescue(connection, label, result.rescue, result.kept, size)
        await worktrees.record_checkout(connection, worktree.id, result.branch, result.base_branch, fresh=True)
        await worktrees.end_sessions(connection, worktree.id, "worktree-reset")

    saved = None
    if result.rescue is not None or result.kept is not None:
        files, commits = (result.rescue.files, result.rescue.commits) if result.rescue else (0, 0)
        saved = Saved(files, commits, result.kept is not None)
    words = worktree_replies.was_reset(worktree.branch, result.branch, result.base_branch, saved, operation.others)
    script = await script_for(ctx, lock, operation, fresh=True)
    return Outcome("done", words, write=write, trashed=result.trashed, script=script)


def record_checkout(operation: Operation, made: Made) -> Callable[[Connection], Awaitable[None]]:
    """Return what writes into the rows that the checkout was made."""

    async def write(connection: Connection) -> None:
        await worktrees.record_checkout(
            connection, operation.worktree.id, made.branch, made.base_branch, fresh=made.fresh
        )
        if made.again:
            await worktrees.end_sessions(connection, operation.worktree.id, "worktree-missing")

    return write


async def make(ctx: NodeContext, lock: CloneLock, operation: Operation, rescue: str | None = None) -> Made:
    """Fetch the clone and make the checkout, from the commit `rescue` where GitHub lacks what that has.

    Raises ImpossibleError, GitError, OSError, InvalidNameError.
    """
    path = ctx.directory(operation.worktree.path)
    await fetch_for(ctx, lock, operation)
    ready = operation.worktree.state == "ready"
    if ready:
        if isinstance(found := await inspect(lock.clone, path), Seen):
            return Made(operation.worktree.branch, operation.worktree.base_branch, fresh=False, again=False)
        _log.warning("worktree-missing", path=operation.worktree.path, why=found.why)
    require_room(ctx)
    made = await _checkout(ctx, lock, operation, rescue)
    if isinstance(made, CheckoutRefused):
        raise ImpossibleError(reasons.no_worktree(made.next_step))
    await asyncio.to_thread(Metadata.record_use, path, operation.worktree, made.branch, made.base_branch, ctx.clock())
    return Made(made.branch, made.base_branch, fresh=True, again=ready)


async def fetch_for(ctx: NodeContext, lock: CloneLock, operation: Operation) -> None:
    """Bring the clone up to date. Raises ImpossibleError, GitError."""
    full_name = operation.worktree.repository.full_name
    if (await update(lock, f"{ctx.server_url}/{full_name}.git")).no_access:
        raise ImpossibleError(reasons.cannot_fetch(full_name))


async def _checkout(
    ctx: NodeContext, lock: CloneLock, operation: Operation, rescue: str | None
) -> Created | CheckoutRefused:
    clone, path, branch = lock.clone, ctx.directory(operation.worktree.path), operation.worktree.branch
    displaced = refs.rescue_ref(str(operation.worktree.id), ctx.clock())
    tip = await _tip_of(clone, rescue) if rescue is not None else None
    if operation.worktree.state == "ready":
        return await recreate(lock, path, branch, tip or operation.worktree.start_sha, displaced)
    on_github = branch is not None and await clone.commit_at(refs.remote(branch)) is not None
    if tip is not None and branch is not None and not on_github and await clone.unpublished(tip):
        return await recreate(lock, path, branch, tip, displaced)
    made = await create(lock, path, refs.start_again(operation.worktree), displaced)
    if isinstance(made, CheckoutRefused) and tip is not None:
        return await recreate(lock, path, branch, tip, displaced)
    return made


async def _tip_of(clone: Clone, rescue: str) -> str | None:
    """Return the commit that the worktree's branch was at when it was rescued."""
    kept = await read_rescue(clone, rescue)
    return (kept.head or kept.tip) if kept is not None else None
