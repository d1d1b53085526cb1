"""What an operator asks of a whole node, carried out as its jobs do it."""

import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bot.care import on_request_rows as rows
from bot.care.on_request import work_on_node
from bot.care.on_request_rows import OperationKind
from bot.care.repair import repair
from bot.care.retention_rules import RetentionPolicy
from bot.node import rescue_rows as rescues
from bot.store import turns
from bot.store.scope import EVERYTHING
from tests.support import operators
from tests.support.node import NODE, Node, prepared_node


@pytest_asyncio.fixture
async def node(tmp_path: Path, database_url: str) -> AsyncIterator[Node]:
    async with prepared_node(tmp_path, database_url) as prepared:
        yield prepared


async def done(node: Node, what: OperationKind, /, **details: object) -> dict[str, Any]:
    """Ask the node, do its jobs, and return how the operation ended."""

    def policy_at(_: datetime, age: timedelta | None) -> RetentionPolicy:
        return node.policy(older_than=age)

    async with node.db.transaction():
        [operation] = await rows.enqueue(node.db, what, details, "the operator, by the API")
    await work_on_node(node.ctx, policy_at, operation)
    ended = await rows.described(node.db, operation, scope=EVERYTHING)
    assert ended is not None
    ended["report"] = json.loads(ended["report"] or "null")
    await work_on_node(node.ctx, policy_at, operation)
    again = await rows.described(node.db, operation, scope=EVERYTHING)
    assert again is not None
    assert again["finished_at"] == ended["finished_at"], "a job that runs again changes nothing"
    return ended


async def an_orphan(node: Node) -> str:
    """Return the path of an orphan with work that was not pushed, whose metadata tells its thread."""
    worktree = await node.add(1, days=0)
    (node.path(1) / "new.txt").write_text("not committed\n")
    await node.db.execute("update conversations set worktree_id = null")
    await node.db.execute("delete from worktrees where id = $1", worktree)
    await repair(node.ctx)
    path: str = await node.db.fetchval("select path from orphans")
    return path


async def test_a_dry_run_and_the_prune_that_follows_it_report_each_worktree(node: Node) -> None:
    branch, detached = await node.add(1, days=1), await node.add(2, days=1, detached=True)
    shown = await done(node, "prune", older_than="0s", kind="branch", dry_run=True)
    assert (shown["state"], shown["node_id"]) == ("done", NODE)
    [line] = shown["report"]["deleted"]
    assert (line["id"], line["path"]) == (branch, str(node.path(1)))
    assert node.path(1).exists()
    ended = await done(node, "prune", older_than="0s", kind="branch")
    assert ended["report"]["deleted"] == [line], "it frees what the dry run said"
    assert await node.states() == {branch: "removed", detached: "ready"}
    assert "1 removed, 0 kept, 0 failed" in ended["outcome"]


async def test_a_prune_of_too_many_at_once_fails_and_says_how_to_go_on(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.care.retention_rules.SAFETY_LIMIT", 1)
    for number in (1, 2):
        await node.add(number, days=1)
    ended = await done(node, "prune", older_than="0s")
    assert ended["state"] == "failed"
    assert ended["outcome"] == (
        "2 of 2 worktrees would go at once. Did the clock jump? Nothing was removed. Repeat it with force to go on."
    )
    assert len((await done(node, "prune", older_than="0s", force=True, dry_run=True))["report"]["deleted"]) == 2


async def test_a_repair_reports_each_place_of_the_repository(node: Node) -> None:
    await node.add(1)
    node.path(1).with_suffix(".json").unlink()
    assert (await done(node, "repair", repo="octo/other"))["outcome"] == "Nothing to repair."
    ended = await done(node, "repair", repo="Octo/Hello")
    assert ended["report"] == [{"path": str(node.path(1)), "action": "rebuilt its metadata"}]
    assert ended["outcome"] == "Repaired: 1 place."


async def test_an_orphan_is_rescued_and_removed_when_it_is_asked(node: Node) -> None:
    ended = await done(node, "remove", path=await an_orphan(node))
    assert ended["outcome"].startswith("Removed; ")
    assert not node.path(1).exists()
    assert [one.files for one in await rescues.latest(node.db)] == [1]


async def test_an_orphan_comes_back_as_the_worktree_of_its_thread(node: Node) -> None:
    ended = await done(node, "restore", path=await an_orphan(node))
    assert ended["state"] == "done", ended["outcome"]
    await operators.run_due(node.ctx)
    restored = await turns.end_of(node.ctx.pool, ended["turn"])
    assert restored is not None
    assert "1 file was restored" in restored.words
    assert (node.path(1) / "new.txt").read_text() == "not committed\n"
    assert await node.states() == {restored.worktree_id: "ready"}


async def test_a_rescue_is_dropped_and_one_that_is_gone_already_is_done(node: Node) -> None:
    worktree = await node.add(1, days=0)
    (node.path(1) / "new.txt").write_text("not committed\n")
    await operators.done(node.ctx, worktree, "remove")
    [rescue] = await rescues.latest(node.db)
    for _ in range(2):
        assert (await done(node, "drop", rescue=rescue.id))["state"] == "done"
        assert await rescues.latest(node.db) == []
    assert await node.git.clone.commit_at(rescue.ref or "") is None


async def test_what_nothing_tells_whose_it_is_is_not_restored(node: Node) -> None:
    stray = node.path(1).with_name("stray")
    stray.mkdir(parents=True)
    await repair(node.ctx)
    path = node.ctx.stored(stray)
    ended = await done(node, "restore", path=path)
    assert (ended["state"], ended["outcome"]) == (
        "failed",
        f"Nothing tells whose {path} is. Remove it: it is kept aside then.",
    )
    assert stray.exists()


@pytest.mark.expects_errors
async def test_a_bug_ends_the_operation_with_the_words_that_find_it_in_the_log(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("bot.care.on_request.repair", broken)
    ended = await done(node, "repair")
    assert ended["state"] == "failed"
    assert f"in its log under operation {ended['id']}" in ended["outcome"]
