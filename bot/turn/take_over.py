"""What a process or a node left that is gone: its turn ends visibly, or moves to a live node (DESIGN.md §4, nodes)."""

import asyncio

import structlog

from bot.node import node_rows as nodes
from bot.node.repository_rules import known_rules
from bot.store import turns
from bot.store.database import Connection, retry_on_unique_violation
from bot.store.turns import Claim, ClaimLostError
from bot.thread import notices, reasons, tracking
from bot.thread.commit_message import split_subject
from bot.thread.tracking import TurnResult
from bot.turn import claims
from bot.turn import message_rows as messages
from bot.turn import take_over_rows as takeover
from bot.turn.choose_worktree import choose_node
from bot.turn.context import TurnContext
from bot.turn.ending import Ending, tell_end
from bot.turn.turn_run import asked_by

_log = structlog.get_logger()


async def take_over(ctx: TurnContext, busy: list[int], timeout_seconds: float) -> None:
    """Move requests that wait for a silent node, and end what an operator asked of it.

    Of this node, let go of the lost worktrees, except the `busy` ones.
    """
    async with ctx.pool.acquire() as connection:
        for worktree in await takeover.let_go(connection, ctx.node, busy):
            _log.warning("lost-worktree-let-go", worktree=worktree)
        stranded = await takeover.stranded(connection, timeout_seconds)
    for worktree, node in stranded:
        if node != ctx.node:
            await retry_on_unique_violation(_move, ctx, worktree, node, timeout_seconds)
    for turn_id in await takeover.give_up_operators(ctx.pool, timeout_seconds, *reasons.NODE_SILENT_FOR_OPERATOR):
        _log.warning("operator-not-answered", turn=turn_id)


async def _move(ctx: TurnContext, worktree: int, node: str, timeout_seconds: float) -> None:
    """Move what waits in one worktree, unless its node is back. Its processes claim nothing meanwhile."""
    async with ctx.pool.acquire() as connection, claims.claims_of_node(connection, node):
        found = await takeover.lock_stranded(connection, worktree, timeout_seconds)
        if found is None:
            return
        for claim in found.running:
            if not await turns.requeue(connection, claim, crashed=True):
                await interrupt(connection, claim, ctx)
        to = choose_node(ctx.node, await nodes.live_nodes(connection, timeout_seconds))
        moved = await takeover.move_waiting(connection, worktree, to, notices.taken_over(found.node_name))
    _log.warning("node-taken-over", node=node, name=found.node_name, worktree=worktree, to=to, now=moved)


async def interrupt(connection: Connection, claim: Claim, ctx: TurnContext) -> bool:
    """End a turn that was cut off for the second time, and say so on its thread; False if the claim was lost."""
    reason = reasons.INTERRUPTED_TWICE
    try:
        await turns.end(connection, claim, "interrupted", reason)
    except ClaimLostError:
        return False
    if (turn := await turns.of_thread(connection, claim.turn_id)) is None:  # an operator asked, who looks
        return True
    repository, left, kind = turn.thread_ref.repository, turn.so_far, ctx.verbs.kind_of(turn.ask)
    place = repository, turn.conversation.number
    added = await messages.told(connection, claim.turn_id)
    result = TurnResult(
        "interrupted",
        reason,
        split_subject(left.answer)[0] if left.answer else "",
        notices=left.notices,
        steps=left.steps,
        asked=asked_by(ctx, kind, turn.ask, *place, claim.turn_id),
        added=tuple(tracking.asked(one.ask, ctx.server_url, *place, one.turn_id) for one in added),
        cost_usd=left.use.cost_usd,
        tokens=left.use.tokens,
        model=left.use.model or left.agent,
    )
    parts = await asyncio.to_thread(tracking.final, result, server_url=ctx.server_url)
    rules = await known_rules(connection, ctx.rules, repository)
    ending = Ending(claim.turn_id, turn.ask, kind, turn.thread_ref, turn.worktree_id, rules, added)
    await tell_end(connection, ctx, ending, result, parts)
    _log.warning("turn-interrupted", turn=claim.turn_id)
    return True
