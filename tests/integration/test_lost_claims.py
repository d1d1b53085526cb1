"""A process that was suspended during a turn without an agent, which another one carries out meanwhile."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot.store import turns
from bot.store.turns import ClaimedTurn
from bot.turn.claims import claim_next
from bot.turn.turn import run_turn
from bot.turn.turn_run import TurnRun
from tests.support import operators
from tests.support.node import Node, prepared_node


@pytest.fixture
async def node(tmp_path: Path, database_url: str) -> AsyncIterator[Node]:
    async with prepared_node(tmp_path, database_url) as made:
        yield made


async def claimed(node: Node) -> ClaimedTurn:
    turn = await claim_next(node.db, node.ctx.node, "0123456789abcdef", 0, node.ctx.clock(), with_agent=False)
    assert turn is not None
    return turn


@pytest.mark.parametrize("verb", ["reset", "remove"])
async def test_what_another_process_carried_out_is_not_done_twice(node: Node, verb: str) -> None:
    worktree = await node.add(1)
    (node.path(1) / "draft").write_text("not committed\n")
    await operators.ask(node.ctx, worktree, verb)
    ctx = operators.for_turns(node.ctx)
    suspended = TurnRun(ctx, await claimed(node))
    assert await turns.requeue(node.db, suspended.turn.claim, crashed=True)

    await run_turn(TurnRun(ctx, await claimed(node)))

    end = await turns.end_of(node.ctx.pool, suspended.turn.id)
    assert end is not None
    assert end.state == "done"
    assert not (node.path(1) / "draft").exists()
    if verb == "reset":
        (node.path(1) / "draft").write_text("written since\n")
    await run_turn(suspended)
    assert (node.path(1) / "draft").exists() == (verb == "reset")
    assert await turns.end_of(node.ctx.pool, suspended.turn.id) == end
