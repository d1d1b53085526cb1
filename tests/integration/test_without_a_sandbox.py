"""AGENT_SANDBOX=off: a short way through the life of a worktree, and what is different in it.

All other tests of worktrees use a sandbox; the stories of `tests/end_to_end` use none where it is not their subject.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bot.agents.driver import Launch
from bot.check.reports import Report
from bot.check.running import Check, Checked, check_commit, place_for
from bot.model import IssueBranch
from bot.node.setup_script import Ended, command_for, run_script
from bot.sandbox.bwrap import agent_argv
from bot.tree.clone.admin import Missing
from bot.tree.clone.checkout import all_entries
from bot.tree.clone.packing import pack
from bot.tree.clone.status import statuses
from bot.tree.create import Created
from bot.tree.git.errors import GitError
from bot.tree.lfs.objects import Provided, provide
from bot.tree.lfs.pointers import Pointer
from bot.tree.push import Pushed
from bot.tree.remove import Removed
from bot.tree.reset import WasReset
from tests.support.damage import clone_gone, record_gone
from tests.support.git_repositories import (
    BOT,
    LABEL,
    RESCUE,
    SEARCH_PATH,
    GitRepositories,
    git,
    lfs_pointer,
    require_git_lfs,
)
from tests.support.node import prepared_node
from tests.support.patience import until_true
from tests.support.sleeping_processes import new_sleep, runs
from tests.support.worktree_states import photo

BRANCH = "threadtree/issue-1"


@pytest.fixture
async def world(tmp_path: Path) -> GitRepositories:
    """Return a worktree with an unpushed commit of its agent and an uncommitted file."""
    world = await GitRepositories.make(tmp_path, "off").with_worktree()
    world.agent_commits({"mine": "1"})
    (world.path / "uncommitted").write_text("2")
    return world


async def test_work_is_pushed_rescued_reset_restored_and_removed(world: GitRepositories) -> None:
    async with world.open() as tree:
        assert (await tree.commit("Do it", BOT, BOT)).sha
    assert await world.pushed() == Pushed("pushed")
    assert git(world.remote, "ls-tree", "--name-only", BRANCH).split() == ["README.md", "mine", "uncommitted"]

    (world.path / "README.md").write_text("edited\n")
    (world.path / "new").write_text("new\n")
    before = photo(world.path)
    async with world.open() as tree:
        await tree.fetch()
        done = await tree.reset(IssueBranch(1), LABEL)
    assert isinstance(done, WasReset)
    assert done.rescue is not None
    assert (world.path / "README.md").read_text() == "hello\n"
    async with world.open() as tree:
        await tree.restore(done.branch, done.rescue.sha, None, 1)
        assert photo(world.path) == before
        gone = await tree.remove(LABEL, base_branch="main")
    assert isinstance(gone, Removed)
    assert not world.path.exists()
    assert world.path not in [entry.path for entry in await all_entries(world.clone)]


def clone_damaged(world: GitRepositories) -> None:
    (world.clone.path / "refs" / "heads" / "nothing").write_text("0" * 39 + "1\n")


@pytest.mark.parametrize("damage", [record_gone, clone_gone, clone_damaged])
async def test_files_are_kept_where_the_record_or_the_clone_is_lost(
    world: GitRepositories, damage: Callable[[GitRepositories], None]
) -> None:
    """The index and HEAD were in the record, and unpushed commits in the clone."""
    mine = git(world.path, "rev-parse", "HEAD")
    damage(world)
    async with world.open() as tree:
        await tree.update(world.url)
        assert isinstance(await tree.look(BRANCH), Missing)
        made = await tree.make_again(BRANCH, None, RESCUE, IssueBranch(1))
    assert isinstance(made, Created)
    assert made.tip == (mine if damage is record_gone else world.remote_tip("main"))
    assert made.kept is not None
    kept = world.root / "data" / "kept" / made.kept
    assert [(kept / name).read_text() for name in ("mine", "uncommitted")] == ["1", "2"]
    assert await world.seen() == (made.tip, BRANCH, 0)


async def test_a_fresh_lock_and_a_fresh_object_belong_to_another_process(world: GitRepositories) -> None:
    fresh = git(world.path, "hash-object", "-w", "uncommitted")
    async with world.open() as tree:
        await pack(tree)
    assert git(world.path, "cat-file", "-p", fresh) == "2"
    held = world.clone.path / "refs" / "remotes" / "origin" / "main.lock"
    held.touch()
    world.someone_pushes("main", {"later": "1"})
    with pytest.raises(GitError, match=r"main\.lock"):
        await world.update()
    assert held.exists()
    os.utime(held, (0, 0))
    await world.update()
    assert not held.exists()


async def test_a_list_asks_each_worktree_by_itself(world: GitRepositories) -> None:
    assert await statuses(world.clone, [world.path]) == {}
    assert len(await (await world.looked_at()).changes()) == 1


async def test_a_set_up_script_and_a_check_run_in_the_worktree(tmp_path: Path, database_url: str) -> None:
    async with prepared_node(tmp_path, database_url, "off") as node:
        worktree = await node.row(await node.add(1))
        file = tmp_path / "script"
        sleep = new_sleep()
        file.write_text(f"{sleep} &\npwd\n")
        argv = tuple(agent_argv(command_for(b"pwd\n", file)))
        launch = Launch(argv, {"PATH": SEARCH_PATH, "HOME": str(node.git.home)}, node.path(1))
        assert await run_script(launch, 30) == Ended(0, str(node.path(1).resolve()))
        await until_true(lambda: not runs(sleep))

        script = b'echo x > new\necho "ok - 1" > "$THREADTREE_REPORTS/a.tap"\nexit 3\n'
        with place_for(node.ctx, worktree.folder) as place:
            check = Check(node.ctx, place, script, {})
            done = await check_commit(check, worktree, node.git.remote_tip("main"))
        report = Report(passed=frozenset({"1"}))
        assert replace(done, seconds=0) == Checked("ended with exit status 3", "", 0, report)
        assert sorted(one.name for one in node.path(1).rglob("*") if one.is_file()) == [".git", "README.md"]


async def test_a_file_under_git_lfs_is_rescued_with_its_content(world: GitRepositories) -> None:
    require_git_lfs()
    world = replace(world, clone=replace(world.clone, git=replace(world.clone.git, lfs=True)))
    pointer = Pointer.parse("", lfs_pointer(b"the picture").encode())
    assert pointer is not None
    given = world.clone.path / "lfs" / pointer.path
    given.parent.mkdir(parents=True)
    given.write_bytes(b"the picture")
    world.agent_commits({".gitattributes": "*.bin filter=lfs -text\n", "a.bin": lfs_pointer(b"the picture")})
    async with world.open() as tree:
        checkout = await tree.checkout()
        assert await provide(checkout, checkout.commit or "") == Provided()
        assert (world.path / "a.bin").read_bytes() == b"the picture"
        (world.path / "a.bin").write_bytes(b"another picture")
        found, _ = await tree.save(LABEL)
    assert found is not None
    assert git(world.clone.path, "show", f"{found.sha}:a.bin") == "another picture"
