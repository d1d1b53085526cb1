"""Before a turn: switch a shared worktree to the branch that this turn needs, or move the turn to another one."""

from dataclasses import replace

import structlog

from bot.clones.admin import Missing
from bot.clones.clone import CloneLock
from bot.clones.start import StartPoint, resolve
from bot.failpoints import reached
from bot.git import refs
from bot.messages import notices, worktree_replies
from bot.model import HeadBranch, LiveWorktree, Start, worktree_path
from bot.node.transactions import persist
from bot.reply import thread_comments
from bot.run.context import TurnContext
from bot.sharing_rules import SharingRefused, sharing_obstacle
from bot.store import conversations, sharing
from bot.store.database import Connection
from bot.store.turns import ClaimedTurn, ClaimLostError
from bot.worktrees.create import Reopened
from bot.worktrees.switch import DoesNotFit, switch

_log = structlog.get_logger()


class TurnMovedError(ClaimLostError):
    """The turn now waits in another worktree: this run stops and writes nothing more."""


async def switch_if_needed(
    ctx: TurnContext, lock: CloneLock, turn: ClaimedTurn, found: Reopened | Missing
) -> tuple[ClaimedTurn, tuple[str, ...]]:
    """Return the turn with its worktree on the branch it needs, and what the reply says about that; after a fetch.

    Raises TurnMovedError if the worktree does not fit; GitError, InvalidNameError, OSError.
    """
    before, after = turn.worktree.branch, turn.switch_to
    if after is None or before is None or not turn.worktree.is_made or before == after:
        return turn, ()
    instead_of = await _switch(ctx, turn, found, before, after)
    if instead_of is not None:
        await _move_elsewhere(ctx, lock, turn, after, instead_of)
        raise TurnMovedError
    words = notices.switched(turn.worktree.owner, before, after)
    told = worktree_replies.was_switched(turn.number, before, after)

    async def write(connection: Connection) -> None:
        noted = await sharing.lock_turn(connection, turn)
        for thread_ref, target in await sharing.record_switch(connection, turn, after, [*noted, words]):
            await thread_comments.reply(connection, thread_ref, target, told)

    await persist(ctx.pool, write)
    reached("switch-saved")
    _log.info("worktree-switched", path=turn.worktree.path, before=before, after=after)
    return replace(turn, worktree=replace(turn.worktree, branch=after)), (words,)


async def join_worktree_on_branch(ctx: TurnContext, lock: CloneLock, turn: ClaimedTurn, start: Start) -> None:
    """Move the turn to the worktree that has checked out the branch of `start`, if that is one of the bot's.

    Raises TurnMovedError then; GitError, InvalidNameError.
    """
    point = await resolve(lock, start)
    branch = point.branch if isinstance(point, StartPoint) else None
    if branch is None:
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
    ctx: TurnContext, turn: ClaimedTurn, found: Reopened | Missing, before: str, after: str
) -> SharingRefused | None:
    """Check the rows, then git, and switch; return why that was refused."""
    async with ctx.pool.acquire() as connection:
        uses = await sharing.usage(connection, [turn.worktree.id], turn.conversation_id)
    if (reason := sharing_obstacle(uses[turn.worktree.id])) is not None:
        return reason
    if isinstance(found, Missing):
        return SharingRefused(turn.worktree.owner, "missing")
    outcome = await switch(found.checkout, before, after)
    return SharingRefused(turn.worktree.owner, outcome.why) if isinstance(outcome, DoesNotFit) else None


async def _other_worktree_on(connection: Connection, turn: ClaimedTurn, branch: str) -> LiveWorktree | None:
    worktree = turn.worktree
    return await conversations.worktree_on_branch(connection, worktree.repository, branch, other_than=worktree.id)


async def _move_elsewhere(
    ctx: TurnContext, lock: CloneLock, turn: ClaimedTurn, branch: str, instead_of: SharingRefused
) -> None:
    """Move the turn to the live worktree with the branch, or to a new one for the pull request on this node."""
    tip = await lock.clone.commit_at(refs.remote(branch))
    own = worktree_path(turn.worktree.folder, f"pr-{turn.number}")
    promised = {notices.in_worktree_of(number) for number in turn.worktree.conversations}
    promised.add(notices.in_worktree_on_branch(turn.worktree.owner, branch))

    async def write(connection: Connection) -> None:
        noted = [notice for notice in await sharing.lock_turn(connection, turn) if notice not in promised]
        holder = await _other_worktree_on(connection, turn, branch)
        if holder is not None:
            words = notices.not_shared_any_more(instead_of, holder.owner, branch)
            await sharing.move_turn(connection, turn, holder.id, holder.node, [*noted, words])
            return
        made = await conversations.reserve_worktree(
            connection,
            turn.worktree.repository,
            node=ctx.node,
            path=own,
            owner=turn.number,
            start=HeadBranch(branch, tip),
        )
        words = notices.not_shared(instead_of, branch)
        await sharing.move_turn(connection, turn, made, ctx.node, [*noted, words])

    await persist(ctx.pool, write)
    _log.info("worktree-not-shared", path=turn.worktree.path, why=instead_of.why)
