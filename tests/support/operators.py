"""Turns that an operator asks for in the worktrees of a `Node`, run as a command runs them."""

from dataclasses import fields
from typing import cast

from bot.agents.driver import PromptLimits
from bot.github.client import GitHub
from bot.locks import worker_lock
from bot.node.context import NodeContext
from bot.store import turns
from bot.store.turns import EndOfTurn
from bot.thread.authority import Policy
from bot.tree.git.runner import Identity
from bot.turn import request_rows as requests
from bot.turn.context import TurnContext
from bot.turn.runner import Runner
from bot.verbs import VERBS


def for_turns(ctx: NodeContext) -> TurnContext:
    """Return the context of a node's turns that ask GitHub nothing."""
    return TurnContext(
        **{one.name: getattr(ctx, one.name) for one in fields(NodeContext) if one.name != "github"},
        github=cast(GitHub, None),
        policy=Policy(1, "threadtree[bot]", "threadtree", "threadtree"),
        author=Identity("threadtree", "threadtree@example.invalid"),
        agent_variables={},
        verbs=VERBS,
        allow_workflow_changes=False,
        limits=PromptLimits(60, 60),
    )


async def ask(ctx: NodeContext, worktree: int, verb: str) -> int:
    """Ask for a turn as an operator; return its id."""
    asked = verb, f"worktrees {verb} {worktree}", "the operator", ctx.clock()
    async with ctx.pool.acquire() as connection, connection.transaction():
        return await requests.enqueue_for_operator(connection, worktree, *asked)


async def run_due(ctx: NodeContext) -> None:
    """Run what operators have asked for."""
    with worker_lock(ctx.workers) as worker:
        await Runner(for_turns(ctx), worker, 0, 0, only_operators=True).run_due()


async def done(ctx: NodeContext, worktree: int, verb: str) -> EndOfTurn:
    """Ask for a turn and run it; return how it ended."""
    turn = await ask(ctx, worktree, verb)
    await run_due(ctx)
    end = await turns.end_of(ctx.pool, turn)
    assert end is not None
    return end
