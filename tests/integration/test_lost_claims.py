"""A process that was suspended during an operation, and whose operation another one carries out meanwhile."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot.operations.execute import carry_out
from bot.store import operations
from bot.store.operations import OperationKind, RequestedBy
from tests.support.node import Node, prepared_node


@pytest.fixture
async def node(tmp_path: Path, database_url: str) -> AsyncIterator[Node]:
    async with prepared_node(tmp_path, database_url) as made:
        yield made


@pytest.mark.parametrize("kind", ["reset", "remove"])
async def test_an_operation_that_another_process_carried_out_is_not_done_twice(node: Node, kind: OperationKind) -> None:
    worktree = await node.add(1)
    (node.path(1) / "draft").write_text("not committed\n")
    asked = RequestedBy("the operator", node.ctx.clock())
    operation = await operations.enqueue(node.db, worktree, kind, asked)
    suspended = await operations.begin(node.db, node.ctx.node, worktree)
    again = await operations.begin(node.db, node.ctx.node, worktree)
    assert suspended is not None
    assert again is not None

    await carry_out(node.ctx, again)

    assert (await operations.status_of(node.db, operation)).state == "done"
    assert not (node.path(1) / "draft").exists()
    if kind == "reset":
        (node.path(1) / "draft").write_text("written since\n")
    outcome = (await operations.status_of(node.db, operation)).outcome
    await carry_out(node.ctx, suspended)
    assert (node.path(1) / "draft").exists() == (kind == "reset")
    assert (await operations.status_of(node.db, operation)).outcome == outcome
