"""Before a turn: switch a shared worktree to the branch that this turn needs, or move the turn to another one."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace

import structlog

from bot.failpoints import reached
from bot.model import HeadBranch, Start
from bot.node.rescues import record_rescue, rescue_size
from bot.node.transactions import persist
from bot.sandbox import trash
from bot.sharing_rules import LiveWorktree, SharingRefused, sharing_obstacle
from bot.store import conversations, worktrees
from bot.store.database import Connection
from bot.store.turns import ClaimedTurn, ClaimLostError
from bot.thread import notices, thread_comments, worktree_replies
from bot.tree import Checkout, Missing, NotRemoved, OpenTree, RescueLabel
from bot.turn import sharing_rows as sharing
from bot.turn.choose_worktree import worktree_path
from bot.turn.context import TurnContext

_log = structlog.get_logger()


class TurnMovedError(ClaimLostError):
    """The turn now waits in another worktree: this run stops and writes nothing more."""


async def switch_if_needed(
    ctx: TurnContext, tree: OpenTree, turn: ClaimedTurn, found: Checkout | Missing
) -> tuple[ClaimedTurn, tuple[str, ...]]:
    """Return the turn with its worktree on the branch it needs, and what the reply says about that; after a fetch.

    Raises TurnMovedError if the worktree does not fit; GitError, InvalidNameError, OSError.
    """
    before, after = turn.worktree.branch, turn.switch_to
    if after is None or before is None or not turn.worktree.is_made or before == after:
        return turn, ()
    instead_of = await _switch(ctx, tree, turn, found, before, after)
    if instead_of is not None:
        await _move_elsewhere(ctx, tree, turn, after, instead_of)
        raise TurnMovedError
    words = notices.switched(turn.worktree.owner, before, after)
    told = worktree_replies.was_switched(turn.conversation.number, before, after)

    async def write(connection: Connection) -> None:
        noted = await sharing.lock_turn(connection, turn)
        for thread_ref, target in await sharing.record_switch(connection, turn, after, [*noted, words]):
            await thread_comments.reply(connection, thread_ref, target, told)

    await persist(ctx.pool, write)
    reached("switch-saved")
    _log.info("worktree-switched", path=turn.worktree.path, before=before, after=after)
    return replace(turn, worktree=replace(turn.worktree, branch=after)), (words,)


async def share_by_now(ctx: TurnContext, tree: OpenTree, turn: ClaimedTurn, closes: Sequence[int]) -> tuple[str, ...]:
    """Move a pull request from a worktree of its own, if that is clean and pushed, into that of an issue it `closes`.

    Return what the reply says if it does not share for good. Raises TurnMovedError if the turn moved; GitError,
    InvalidNameError, OSError.
    """
    own, branch = turn.worktree, turn.worktree.branch or ""
    async with ctx.pool.acquire() as connection, connection.transaction():
        linked = await conversations.worktrees_of_issues(connection, own.repository, closes)
        uses = dict(await sharing.usage(connection, [one.id for _, one in linked], turn.conversation.id))
    refused: SharingRefused | None = None
    for issue, other in linked:
        if other.node != ctx.node or other.id == own.id:
            continue
        misfit = sharing_obstacle(uses[other.id]) or await _misfit(ctx, tree, other, branch)
        if misfit is None:
            await _leave_for(ctx, tree, turn, issue, other, branch)
            return ()  # it has work of its own: GitHub is asked again at the next request
        refused = refused or misfit
    await worktrees.ask_what_it_closes(ctx.pool, own.id, is_due=False)
    return (notices.not_shared(refused, branch),) if refused else ()


async def _misfit(ctx: TurnContext, tree: OpenTree, other: LiveWorktree, branch: str) -> SharingRefused | None:
    """Return why git cannot switch a worktree in which nothing runs to the branch, once no other one has that."""
    why = await tree.at(ctx.directory(other.path)).obstacle(other.branch or "", branch)
    return SharingRefused(other.owner, why) if why not in (None, "branch-elsewhere") else None


async def _leave_for(
    ctx: TurnContext, tree: OpenTree, turn: ClaimedTurn, issue: int, other: LiveWorktree, branch: str
) -> None:
    """Remove the turn's own worktree and move the turn to the `other`; do nothing if work of it is only there."""
    own = turn.worktree
    label = RescueLabel(own.id, own.branch, own.conversations, ctx.clock())
    # A run that was killed here found it clean before it removed the directory.
    is_there = await asyncio.to_thread(os.path.lexists, tree.path)
    left = await tree.remove(label, only_clean=is_there)
    if isinstance(left, NotRemoved):
        _log.info("worktree-not-left", path=own.path, why=left.why)
        return
    reached("worktree-left")
    size = await rescue_size(tree, left.rescue, left.kept)

    async def write(connection: Connection) -> None:
        await record_rescue(connection, label, left.rescue, left.kept, size)
        words = (*await sharing.lock_turn(connection, turn), notices.shared_by_now(issue))
        await conversations.end_session(connection, turn.conversation.id, "worktree-removed")
        await sharing.move_turn(connection, turn, other.id, other.node, words, switch_to=branch)

    await persist(ctx.pool, write)
    _log.info("worktree-shared", worktree=other.id, conversation_id=turn.conversation.id, switch_to=branch)
    for place in left.trashed:
        await trash.delete(place)
    raise TurnMovedError


async def join_worktree_on_branch(ctx: TurnContext, tree: OpenTree, turn: ClaimedTurn, start: Start) -> None:
    """Move the turn to the worktree that has checked out the branch of `start`, if that is one of the bot's.

    Raises TurnMovedError then; GitError, InvalidNameError.
    """
    if (branch := await tree.branch_of(start)) is None:
        return

    async def write(connection: Connection) -> bool:
        noted = await sharing.lock_turn(connection, turn)
        holder = await _other_worktree_on(connection, turn, branch)
        if holder is None:
            return False
        words = notices.in_worktree_on_branch(holder.owner, branch)
        await sharing.move_turn(connection, turn, holder.id, holder.node, [*noted, words])
        return True

    if await persist(ctx.pool, write):
        _log.info("worktree-joined", branch=branch)
        raise TurnMovedError


async def _switch(
    ctx: TurnContext, tree: OpenTree, turn: ClaimedTurn, found: Checkout | Missing, before: str, after: str
) -> SharingRefused | None:
    """Check the rows, then git, and switch; return why that was refused."""
    async with ctx.pool.acquire() as connection:
        uses = dict(await sharing.usage(connection, [turn.worktree.id], turn.conversation.id))
    if (reason := sharing_obstacle(uses[turn.worktree.id])) is not None:
        return reason
    if isinstance(found, Missing):
        return SharingRefused(turn.worktree.owner, "missing")
    why = await tree.switch(before, after)
    return SharingRefused(turn.worktree.owner, why) if why is not None else None


async def _other_worktree_on(connection: Connection, turn: ClaimedTurn, branch: str) -> LiveWorktree | None:
    worktree = turn.worktree
    return await conversations.worktree_on_branch(connection, worktree.repository, branch, other_than=worktree.id)


async def _move_elsewhere(
    ctx: TurnContext, tree: OpenTree, turn: ClaimedTurn, branch: str, instead_of: SharingRefused
) -> None:
    """Move the turn to the live worktree with the branch, or to a new one for the pull request on this node."""
    tip = await tree.clone.tip(branch)
    own = worktree_path(turn.worktree.folder, f"pr-{turn.conversation.number}")
    promised = {notices.in_worktree_of(number) for number in turn.worktree.conversations}
    promised.add(notices.in_worktree_on_branch(turn.worktree.owner, branch))

    async def write(connection: Connection) -> None:
        noted = [notice for notice in await sharing.lock_turn(connection, turn) if notice not in promised]
        holder = await _other_worktree_on(connection, turn, branch)
        if holder is not None:
            words = notices.not_shared(instead_of, branch, holder.owner)
            await sharing.move_turn(connection, turn, holder.id, holder.node, [*noted, words])
            return
        made = await conversations.reserve_worktree(
            connection,
            turn.worktree.repository,
            node=ctx.node,
            path=own,
            owner=turn.conversation.number,
            start=HeadBranch(branch, tip),
        )
        words = notices.not_shared(instead_of, branch)
        await sharing.move_turn(connection, turn, made, ctx.node, [*noted, words])

    await persist(ctx.pool, write)
    _log.info("worktree-not-shared", path=turn.worktree.path, why=instead_of.why)
