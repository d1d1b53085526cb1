"""Create the checkout of a worktree without a turn: by its row, or from what was rescued of it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bot.clones.checkout import Valid, inspect
from bot.clones.clone import Clone, CloneLock, clone_lock
from bot.clones.fetch import NoAccess, update
from bot.clones.metadata import record_use
from bot.clones.start import Refused, start_again
from bot.git import refs
from bot.messages import reasons, worktree_replies
from bot.node.context import NodeContext
from bot.node.room import require_room
from bot.node.transactions import persist
from bot.operations.shared import Outcome
from bot.rescue.stored import read_rescue
from bot.store import operations, worktrees
from bot.store.database import Connection
from bot.store.operations import ClaimedOperation
from bot.worktrees.create import Created, create, recreate


@dataclass(frozen=True, slots=True)
class Made:
    """The checkout is there; `fresh`: it was made now, `again`: it had been lost."""

    branch: str | None
    base_branch: str | None
    fresh: bool
    again: bool


async def create_worktree(ctx: NodeContext, operation: ClaimedOperation) -> Outcome:
    """Create the checkout, unless it is there."""
    async with clone_lock(ctx.clone(operation.worktree.folder)) as lock:
        await persist(ctx.pool, operations.check_claim, operation.claim)
        made = await make(ctx, lock, operation)
    if isinstance(made, Outcome):
        return made
    return Outcome("done", worktree_replies.was_made(made.branch), write=record_checkout(operation, made))


def record_checkout(operation: ClaimedOperation, made: Made) -> Callable[[Connection], Awaitable[None]]:
    """Return what writes into the rows that the checkout was made."""

    async def write(connection: Connection) -> None:
        await worktrees.record_checkout(
            connection, operation.worktree.id, made.branch, made.base_branch, fresh=made.fresh
        )
        if made.again:
            await worktrees.end_sessions(connection, operation.worktree.id, "worktree-missing")

    return write


async def make(
    ctx: NodeContext, lock: CloneLock, operation: ClaimedOperation, rescue: str | None = None
) -> Made | Outcome:
    """Fetch the clone and make the checkout, from the commit `rescue` where GitHub lacks what that has.

    An Outcome says why that is impossible.
    """
    path = ctx.directory(operation.worktree.path)
    if (unfetched := await fetched(ctx, lock, operation)) is not None:
        return unfetched
    ready = operation.worktree.state == "ready"
    if ready and isinstance(await inspect(lock.clone, path), Valid):
        return Made(operation.worktree.branch, operation.worktree.base_branch, fresh=False, again=False)
    require_room(ctx)
    made = await _checkout(ctx, lock, operation, rescue)
    if isinstance(made, Refused):
        return _impossible(reasons.no_worktree(made.next_step))
    await asyncio.to_thread(record_use, path, operation.worktree, made.branch, made.base_branch, ctx.clock())
    return Made(made.branch, made.base_branch, fresh=True, again=ready)


async def fetched(ctx: NodeContext, lock: CloneLock, operation: ClaimedOperation) -> Outcome | None:
    """Bring the clone up to date; return why that is impossible."""
    full_name = operation.worktree.repository.full_name
    updated = await update(lock, f"{ctx.server_url}/{full_name}.git")
    return _impossible(reasons.cannot_fetch(full_name)) if isinstance(updated, NoAccess) else None


def _impossible(words: str) -> Outcome:
    return Outcome("failed", words, words)


async def _checkout(
    ctx: NodeContext, lock: CloneLock, operation: ClaimedOperation, rescue: str | None
) -> Created | Refused:
    clone, path, branch = lock.clone, ctx.directory(operation.worktree.path), operation.worktree.branch
    displaced = refs.rescue_ref(str(operation.worktree.id), ctx.clock())
    tip = await _tip_of(clone, rescue) if rescue is not None else None
    if operation.worktree.state == "ready":
        return await recreate(lock, path, branch, tip or operation.worktree.start_sha, displaced)
    on_github = branch is not None and await clone.commit_at(refs.remote(branch)) is not None
    if tip is not None and branch is not None and not on_github and await clone.unpublished(tip):
        return await recreate(lock, path, branch, tip, displaced)
    made = await create(lock, path, start_again(operation.worktree), displaced)
    if isinstance(made, Refused) and tip is not None:
        return await recreate(lock, path, branch, tip, displaced)
    return made


async def _tip_of(clone: Clone, rescue: str) -> str | None:
    """Return the commit that the worktree's branch was at when it was rescued."""
    kept = await read_rescue(clone, rescue)
    return (kept.head or kept.tip) if kept is not None else None
