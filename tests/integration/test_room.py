"""While the disk is short no worktree is made, and what is least needed goes first."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bot.care.prune import make_room
from bot.node import room
from bot.sandbox import trash
from tests.support import operators
from tests.support.git_repositories import SANDBOXES
from tests.support.node import Node, prepared_node


@pytest.fixture(params=SANDBOXES)
async def node(tmp_path: Path, database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    async with prepared_node(tmp_path, database_url, request.param) as made:
        yield made


async def test_the_oldest_worktrees_without_work_of_their_own_go_until_there_is_room(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await node.add(number, days=days) for number, days in enumerate((20, 30, 10, 0.5), start=1)]
    (node.path(2) / "work.txt").write_text("work\n")
    (trash.trash_folder(node.ctx.data_dir) / "left").mkdir(parents=True)
    # Each worktree takes one of four bytes.
    monkeypatch.setattr(room, "free_bytes", lambda _: 4 - sum(node.path(number).exists() for number in range(1, 5)))
    monkeypatch.setattr("bot.care.prune.free_bytes", room.free_bytes)
    short = replace(node.ctx, disk_reserve_bytes=1)
    activity = (await node.row(ids[1])).updated_at

    await make_room(short)
    await make_room(short)

    assert [node.path(number).exists() for number in range(1, 5)] == [False, True, True, True]
    assert list(trash.trash_folder(node.ctx.data_dir).iterdir()) == []
    assert await node.db.fetchval("select removal from worktrees where id = $1", ids[0]) == "purged"
    assert await node.db.fetchval("select count(*) from rescues") == 0
    # Its conversation keeps it, and the one with work has the same age as before.
    assert await node.db.fetchval("select worktree_id from conversations where number = 1") == ids[0]
    assert (await node.row(ids[1])).updated_at == activity

    await make_room(replace(node.ctx, disk_reserve_bytes=4))
    assert [node.path(number).exists() for number in range(1, 5)] == [False, True, False, True]


async def test_an_operator_cannot_make_a_worktree_while_the_disk_is_short(node: Node) -> None:
    worktree = await node.add(1, days=0)
    await node.db.execute("update worktrees set state = 'reserved'")
    short = replace(node.ctx, disk_reserve_bytes=10**18)
    end = await operators.done(short, worktree, "create")
    assert end.state == "failed"
    assert "nearly full" in end.words
