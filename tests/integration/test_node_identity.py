"""Which node this is: an id in DATA_DIR that survives another host name and another place."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest

from bot.care.repair import repair
from bot.model import IssueBranch
from bot.node import node_rows as nodes
from bot.node.identity import LOOKS, NodeInUseError, identify, place_of, registered
from bot.sandbox.bwrap import sandbox_for
from bot.store.database import Pool, database
from bot.tree import move_in
from bot.tree.clone.checkout import Seen, all_entries, inspect
from bot.tree.clone.clone import clone_lock
from bot.tree.create import Created, create, recreate
from tests.support import operators
from tests.support.git_repositories import RESCUE, SANDBOXES, SEARCH_PATH, git, usable_sandbox
from tests.support.node import Node, prepared_node
from tests.support.turn_rows import TurnRows


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    async with database(database_url, size=4) as opened:
        yield opened


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


async def node_of(pool: Pool, data_dir: Path, name: str = "host") -> str:
    return (await identify(pool, data_dir, name)).id


async def test_a_new_host_name_is_only_another_label(pool: Pool, data_dir: Path) -> None:
    first = await node_of(pool, data_dir, "one")
    async with registered(pool, await identify(pool, data_dir, "two"), 60):
        assert [dict(row) for row in await pool.fetch("select id, name from nodes")] == [{"id": first, "name": "two"}]
    assert first != "one"


async def test_processes_that_start_at_the_same_time_are_one_node(pool: Pool, data_dir: Path) -> None:
    assert len({*await asyncio.gather(*(node_of(pool, data_dir) for _ in range(8)))}) == 1
    assert await pool.fetchval("select count(*) from nodes") == 1


async def test_a_copy_of_the_data_directory_is_refused_while_the_original_runs(
    pool: Pool, data_dir: Path, tmp_path: Path
) -> None:
    original = await identify(pool, data_dir, "host")
    copy = Path(shutil.copytree(data_dir, tmp_path / "copy"))
    copied = await identify(pool, copy, "host")
    assert (copied.id, copied.place != original.place) == (original.id, True)
    looks = []

    async def original_lives(seconds: float) -> None:
        looks.append(seconds)
        assert await nodes.heartbeat(pool, original, 60)

    async with registered(pool, original, 60), registered(pool, original, 60):
        with pytest.raises(NodeInUseError, match="copy of this DATA_DIR"):
            async with registered(pool, copied, 60, original_lives):
                pass
    assert len(looks) == 1

    # The original has ended, or was killed and gives no sign of life.
    async with registered(pool, copied, 60, original_lives):
        assert not await nodes.heartbeat(pool, original, 60)
    async with registered(pool, original, 60):
        looks.clear()

        async def killed(seconds: float) -> None:
            looks.append(seconds)

        async with registered(pool, copied, 60, killed):
            assert len(looks) == LOOKS
            assert await pool.fetchval("select place from nodes") == place_of(copy)

            # The original was only suspended, and starts again: in the last look the other one gives a sign of life.
            async def beats_late(seconds: float) -> None:
                looks.append(seconds)
                if len(looks) == LOOKS:
                    assert await nodes.heartbeat(pool, copied, 60)

            looks.clear()
            with pytest.raises(NodeInUseError, match="copy of this DATA_DIR"):
                async with registered(pool, original, 60, beats_late):
                    pass


async def test_requests_that_waited_while_no_node_ran_are_told_and_no_others(pool: Pool, data_dir: Path) -> None:
    node = await identify(pool, data_dir, "host")
    async with pool.acquire() as connection:
        rows = TurnRows(connection)
        conversation, _ = await rows.home(node=node.id)
        turn = await rows.ask(conversation)
        for seconds, told in ((0, 0), (240, 0), (360, 1)):
            await pool.execute("update nodes set heartbeat_at = now() - make_interval(secs => $1)", seconds)
            async with registered(pool, node, 60), registered(pool, node, 60):
                notices = (await rows.row(turn))["notices"]
                assert [text.split(" from ")[0] for text in notices] == [
                    "This request waited: no machine of the bot ran"
                ] * told


@pytest.mark.parametrize("content", ["", "{}", '{"id": "../up"}', '{"id": 7}', "[]"])
async def test_a_damaged_file_is_refused(pool: Pool, data_dir: Path, content: str) -> None:
    (data_dir / "node.json").write_text(content)
    with pytest.raises(NodeInUseError, match=r"node\.json is damaged"):
        await node_of(pool, data_dir)


async def with_work(node: Node) -> None:
    """Make a worktree with a change that is nowhere else."""
    await node.add(1)
    (node.path(1) / "README.md").write_text("changed\n")


@pytest.fixture(params=SANDBOXES)
async def each(request: pytest.FixtureRequest, tmp_path: Path, database_url: str) -> AsyncIterator[Node]:
    sandbox: Literal["off", "bwrap"] = request.param
    if sandbox == "bwrap":
        usable_sandbox(tmp_path)
    async with prepared_node(tmp_path, database_url, sandbox) as node:
        yield node


async def started(node: Node, data_dir: Path, name: str) -> Node:
    """Start the node at this place, as a process does."""
    here = await identify(node.ctx.pool, data_dir, name)
    sandbox = sandbox_for("bwrap" if node.ctx.git.sandbox.isolates else "off", data_dir, SEARCH_PATH)
    ctx = replace(node.ctx, node=here.id, data_dir=data_dir, git=replace(node.ctx.git, sandbox=sandbox))
    await move_in(ctx.data_dir, ctx.git)
    return replace(node, ctx=ctx)


async def state_of(node: Node) -> tuple[str, str, object]:
    """Return the row's node and path, and whether git finds the worktree there with its change."""
    row = await node.db.fetchrow("select node, path from worktrees")
    path = node.ctx.directory(row["path"])
    found = await inspect(node.ctx.clone("octo/hello"), path)
    return row["node"], row["path"], isinstance(found, Seen) and found.files and (path / "README.md").read_text()


PATH = "worktrees/octo/hello/issue-1"


async def test_worktrees_follow_a_data_directory_that_is_moved(each: Node, tmp_path: Path) -> None:
    await with_work(each)
    await state_of(each)  # in a sandbox, the private state is made now
    now = each.ctx.data_dir
    for number in (1, 2):
        now = tmp_path / f"bigger-{number}"
        each.ctx.data_dir.rename(now)
        each = await started(each, now, "host")
        assert await state_of(each) == ("here", PATH, "changed\n")
        assert len(await repair(each.ctx)) == number - 1
        async with clone_lock(each.ctx.clone("octo/hello")) as lock:  # the second time there is one without a row
            without_row = each.ctx.directory(PATH).with_name("issue-2")
            assert isinstance(await inspect(lock.clone, without_row), Seen) == (number == 2)
            await create(lock, without_row, IssueBranch(2), RESCUE)


def gone(path: Path) -> None:
    shutil.rmtree(path)


def a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("mine")


def empty(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def another_repository(path: Path) -> None:
    shutil.rmtree(path)
    git(path.parent, "init", "-q", str(path))
    (path / "mine").write_text("mine")


BRANCH = "threadtree/issue-1"


@pytest.fixture(params=[gone, a_file, empty, another_repository])
async def moved(each: Node, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Node, str]:
    """Return a node whose DATA_DIR was moved, and a commit of its worktree, whose directory is not there any more."""
    await with_work(each)
    commit = each.git.agent_commits({"work": "only here"})
    each.ctx.data_dir.rename(tmp_path / "bigger")
    request.param(tmp_path / "bigger" / PATH)
    return await started(each, tmp_path / "bigger", "host"), commit


def head_of(node: Node) -> str:
    return git(node.ctx.data_dir / "repos" / "octo" / "hello.git", "rev-parse", f"refs/heads/{BRANCH}")


async def test_a_worktree_that_a_move_lost_is_made_again_with_its_commits(moved: tuple[Node, str]) -> None:
    node, commit = moved
    path = node.ctx.directory(PATH)
    async with clone_lock(node.ctx.clone("octo/hello")) as lock:
        made = await recreate(lock, path, BRANCH, None, RESCUE)
        assert isinstance(made, Created)
        assert (made.branch, made.tip, (path / "work").read_text()) == (BRANCH, commit, "only here")
        found = await inspect(lock.clone, path)
        assert isinstance(found, Seen)
        assert (found.commit, found.branch, found.files) == (commit, BRANCH, 0)
        [entry] = await all_entries(lock.clone)
    assert entry.path == path
    assert await repair(node.ctx) == []


async def test_a_worktree_that_a_move_lost_is_pruned_and_restored_with_its_commits(moved: tuple[Node, str]) -> None:
    node, commit = moved
    node.move_clock(1)
    report = await node.sweep(policy=node.policy(older_than=timedelta(hours=1)))
    assert not report.errors
    assert [row["state"] for row in await node.db.fetch("select state from worktrees")] == ["removed"]
    assert list((node.ctx.data_dir / "repos/octo/hello.git/worktrees").glob("*")) == []
    assert list((node.ctx.data_dir / "private").glob("*")) == []
    worktree = await node.db.fetchval("select id from worktrees")
    assert (await operators.done(node.ctx, worktree, "restore")).state == "done"
    assert head_of(node) == commit
