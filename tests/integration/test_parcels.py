"""A rescue that is on another node comes to the worktree of its thread (DESIGN.md §4, nodes)."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from bot.model import IssueBranch, Target
from bot.node.context import NodeContext
from bot.operations import parcels
from bot.operations.execute import carry_out
from bot.store import conversations, operations, rescues
from bot.store.operations import OperationStatus, RequestedBy
from bot.store.upkeep import delete_old
from tests.support.git_repositories import git
from tests.support.node import HELLO, Node, commit_in, prepared_node

BRANCH = "threadtree/issue-1"
THERE = "there"


@dataclass(frozen=True)
class TwoNodes:
    """Node `here` has a rescue of issue 1; `there` has the worktree in which the thread works now."""

    here: Node
    there: NodeContext
    worktree: int
    conversation: int
    commit: str

    async def restore(self, rescue_id: int | None = None) -> OperationStatus:
        """Carry out `/worktree restore` on the thread, or what an operator asks; the other node sends meanwhile."""
        db = self.here.db
        asked = RequestedBy("maria", self.there.clock(), self.conversation, Target("comment", 5))
        if rescue_id is not None:
            asked = operations.by_operator("API", self.there.clock())
        operation = await operations.enqueue(db, self.worktree, "restore", asked, rescue_id=rescue_id)
        claimed = await operations.claim_next(db, THERE, "worker")
        assert claimed is not None
        await carry_out(self.there, claimed)
        assert await db.fetchval("select count(*) from operations where state <> 'done' and state <> 'failed'") == 0
        return await operations.status_of(db, operation)

    @property
    def path(self) -> Path:
        return self.there.directory("worktrees/octo/hello/issue-1")


@pytest.fixture
async def two(tmp_path: Path, database_url: str) -> AsyncIterator[TwoNodes]:
    (tmp_path / "one").mkdir()
    async with prepared_node(tmp_path / "one", database_url) as here:
        lost = await here.add(1)
        commit = commit_in(here.path(1), "work", "work\n")
        (here.path(1) / "draft").write_text("not committed\n")
        here.move_clock(400)
        assert len((await here.sweep()).deleted) == 1
        assert await here.states() == {lost: "removed"}

        async def sends(_: float) -> None:
            await parcels.send(here.ctx)

        there = replace(here.ctx, node=THERE, data_dir=tmp_path / "two", sleep=sends)
        await here.db.execute("insert into nodes (id, name) values ($1, 'other')", THERE)
        await here.db.execute("update nodes set name = 'first' where id = 'here'")
        worktree = await conversations.reserve_worktree(
            here.db, HELLO, node=THERE, path="worktrees/octo/hello/issue-1", owner=1, start=IssueBranch(1)
        )
        yield TwoNodes(here, there, worktree, await here.talk(1, worktree), commit)


async def test_a_rescue_of_another_node_is_restored_with_its_commits_and_files(two: TwoNodes) -> None:
    status = await two.restore()

    assert status.state == "done", status.outcome
    assert git(two.path, "rev-parse", "HEAD", "--abbrev-ref", "HEAD").split() == [two.commit, BRANCH]
    assert (two.path / "work").read_text() == "work\n"
    assert git(two.path, "status", "--porcelain") == "?? draft"
    assert await two.here.db.fetchval("select restored_at is not null and ref is not null from rescues")
    assert await two.here.db.fetchval("select count(*) from parcels") == 0
    clone = two.there.clone("octo/hello").path
    assert not git(clone, "for-each-ref", "refs/threadtree/rescue/"), "it stays a rescue of its own node"


async def test_an_operator_restores_it_by_its_id_where_the_thread_works(two: TwoNodes) -> None:
    [rescue] = await rescues.latest(two.here.db)
    assert await rescues.home(two.here.db, rescue) == (two.worktree, THERE)
    assert (await two.restore(rescue.id)).state == "done"
    assert (two.path / "draft").read_text() == "not committed\n"

    own = (rescue.worktree_id, "here")
    await two.here.db.execute("update nodes set heartbeat_at = now() - interval '1 hour' where id = $1", THERE)
    assert await rescues.home(two.here.db, rescue) == own, "the other node is silent"
    await two.here.db.execute("update nodes set heartbeat_at = now()")
    await two.here.db.execute("update conversations set worktree_id = null")
    assert await rescues.home(two.here.db, rescue) == own, "no thread works elsewhere"


async def test_a_large_rescue_arrives_in_parts(two: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcels, "PART_BYTES", 100)
    assert (await two.restore()).state == "done"
    assert (two.path / "draft").read_text() == "not committed\n"


async def test_a_rescue_that_is_too_large_stays_on_its_node_and_the_thread_is_told(
    two: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parcels, "MOST_BYTES", 100)

    status = await two.restore()

    assert status.state == "failed"
    assert "on the machine first" in str(status.outcome)
    assert "at most 50 MB" in str(status.outcome)
    assert await two.here.db.fetchval("select count(*) from parcels") == 0


async def test_a_silent_node_is_not_waited_for_and_sends_when_it_is_back(two: TwoNodes) -> None:
    db = two.here.db
    await db.execute("update nodes set heartbeat_at = now() - interval '1 hour' where id = 'here'")
    status = await two.restore()
    assert status.state == "failed"
    assert "does not answer" in str(status.outcome)

    await db.execute("update nodes set heartbeat_at = now() where id = 'here'")
    await parcels.send(two.here.ctx)
    assert await db.fetchval("select sha is not null from parcels")
    assert (await two.restore()).state == "done"


async def test_a_restore_that_is_killed_while_it_waits_is_completed_by_the_next_process(two: TwoNodes) -> None:
    async def killed(_: float) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await replace(two, there=replace(two.there, sleep=killed)).restore()
    claimed = await operations.claim_next(two.here.db, THERE, "worker")
    assert claimed is not None
    await carry_out(two.there, claimed)
    assert (await operations.status_of(two.here.db, claimed.id)).state == "done"
    assert (two.path / "draft").read_text() == "not committed\n"


async def test_a_directory_that_is_kept_whole_stays_on_its_node(two: TwoNodes) -> None:
    await two.here.db.execute("update rescues set ref = null, kept = 'issue-1.kept'")
    status = await two.restore()
    assert status.state == "failed"
    assert "It is a whole directory" in str(status.outcome)


async def test_parcels_that_nobody_takes_are_deleted(two: TwoNodes) -> None:
    db = two.here.db
    await db.execute("insert into parcels (rescue_id, node, has) select id, $1, '{}' from rescues", THERE)
    await parcels.send(two.here.ctx)
    await db.execute("update parcels set asked_at = now() - interval '61 minutes'")
    await delete_old(db, timedelta(0), timedelta(0))
    assert await db.fetchval("select count(*) from parcel_parts") == 0
