"""Removal: a worktree goes only when everything in it exists elsewhere, and then it goes entirely."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bot.run.worktrees.clone import clone_lock, fetch
from bot.run.worktrees.entries import Valid, all_entries, inspect
from bot.run.worktrees.removal import Kept, Removed, delete_bytes, remove
from bot.run.worktrees.start import DetachedHead, HeadBranch
from bot.run.worktrees.worktree import Created
from tests.integration.git_world import RESCUE, SANDBOXES, GitWorld, git

BRANCH = "threadtree/issue-1"


@pytest.fixture(params=SANDBOXES)
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> GitWorld:
    world = GitWorld.make(tmp_path, request.param)
    await world.created()
    return world


async def removed(world: GitWorld, branch: str | None = BRANCH) -> Removed | Kept:
    async with clone_lock(world.clone) as lock:
        await fetch(lock)
        return await remove(lock, world.path, branch, RESCUE)


async def is_gone(world: GitWorld) -> bool:
    on_record = [entry.path for entry in await all_entries(world.clone)]
    return not os.path.lexists(world.path) and world.path not in on_record  # noqa: ASYNC240


async def test_a_worktree_whose_work_is_on_the_remote_goes_with_its_branch(world: GitWorld) -> None:
    world.agent_commits({"line\nbreak": "1"})
    await world.publish()
    assert await removed(world) == Removed(branch_deleted=True)
    assert await is_gone(world)
    assert await world.clone.commit_at(f"refs/heads/{BRANCH}") is None
    assert list(world.clone.trash.iterdir()) == []


async def test_it_can_be_made_again_at_the_same_path(world: GitWorld) -> None:
    assert isinstance(await removed(world), Removed)
    assert isinstance(await world.create(), Created)


async def test_a_pull_requests_branch_leaves_no_configuration_behind(world: GitWorld) -> None:
    assert isinstance(await removed(world), Removed)
    world.someone_pushes("feature", {"a": "1"}, start="origin/main")
    await world.created(HeadBranch("feature"))
    assert await removed(world, "feature") == Removed(branch_deleted=True)
    assert "branch.feature" not in git(world.clone.path, "config", "--list")


async def test_a_forks_head_counts_as_published_and_a_commit_on_it_does_not(world: GitWorld) -> None:
    tip = world.someone_pushes("fork", {"a": "1"}, start="origin/main")
    git(world.remote, "update-ref", "refs/pull/7/head", tip)
    git(world.remote, "update-ref", "-d", "refs/heads/fork")
    assert isinstance(await removed(world), Removed)
    await world.created(DetachedHead(tip, "refs/pull/7/head"))
    world.agent_commits({"b": "1"})
    assert await removed(world, None) == Kept("1 commits that were not pushed")
    world.agent("reset", "-q", "--hard", tip)
    assert await removed(world, None) == Removed(branch_deleted=False)


def edit(world: GitWorld) -> None:
    (world.path / "README.md").write_text("edited")


def untracked_file(world: GitWorld) -> None:
    (world.path / "line\nbreak").write_text("1")


def unpushed_commit(world: GitWorld) -> None:
    world.agent_commits({"a": "1"})


def unpushed_commit_beside_the_branch(world: GitWorld) -> None:
    world.agent("checkout", "-q", "--detach")
    world.agent_commits({"a": "1"})


def unpushed_branch_under_a_published_head(world: GitWorld) -> None:
    world.agent_commits({"a": "1"})
    world.agent("checkout", "-q", "--detach", "origin/main")


def hidden_edit(world: GitWorld) -> None:
    world.agent("update-index", "--skip-worktree", "README.md")
    edit(world)


def unseen_edit(world: GitWorld) -> None:
    world.agent("update-index", "--assume-unchanged", "README.md")
    edit(world)


def stash(world: GitWorld) -> None:
    edit(world)
    world.agent("stash", "push", "-q")


def stash_with_a_message(world: GitWorld) -> None:
    edit(world)
    world.agent("stash", "push", "-q", "-m", "for later")


def bisect(world: GitWorld) -> None:
    world.agent("bisect", "start")


def nested_repository(world: GitWorld) -> None:
    world.agent("init", "-q", "nested")


def unknown_directory(world: GitWorld) -> None:
    (world.path / ".git").unlink()


def broken_index(world: GitWorld) -> None:
    (world.state / "index").write_text("not an index")


@pytest.mark.parametrize(
    "work",
    [
        edit,
        untracked_file,
        unpushed_commit,
        unpushed_commit_beside_the_branch,
        unpushed_branch_under_a_published_head,
        hidden_edit,
        unseen_edit,
        stash,
        stash_with_a_message,
        bisect,
        nested_repository,
        unknown_directory,
        broken_index,
    ],
)
async def test_work_that_exists_nowhere_else_is_kept(world: GitWorld, work: Callable[[GitWorld], None]) -> None:
    work(world)
    before = sorted(str(file) for file in world.path.rglob("*"))
    kept = await removed(world)
    assert isinstance(kept, Kept)
    assert kept.why
    assert sorted(str(file) for file in world.path.rglob("*")) == before
    assert world.path in [entry.path for entry in await all_entries(world.clone)]
    assert not world.clone.trash.exists()


async def test_another_branchs_stash_and_ignored_files_keep_nothing(world: GitWorld) -> None:
    world.someone_pushes("main", {".gitignore": "*.log\n"})
    other = await world.created(HeadBranch("main"), world.path.with_name("other"))
    assert other.branch == "main"
    (world.path.with_name("other") / "README.md").write_text("edited")
    world.agent("stash", "push", "-q", path=world.path.with_name("other"))
    world.agent("merge", "-q", "--ff-only", "origin/main")
    (world.path / "x.log").write_text("ignored")
    assert await removed(world) == Removed(branch_deleted=True)
    assert isinstance(await inspect(world.clone, world.path.with_name("other")), Valid)


async def test_a_directory_deleted_by_hand_is_forgotten_and_its_commits_stay(world: GitWorld) -> None:
    mine = world.agent_commits({"a": "1"})
    shutil.rmtree(world.path)
    assert await removed(world) == Removed(branch_deleted=False)
    assert await is_gone(world)
    assert await world.clone.commit_at(f"refs/heads/{BRANCH}") == mine


async def test_commits_only_a_vanished_head_reached_are_kept(world: GitWorld) -> None:
    world.agent("checkout", "-q", "--detach")
    stray = world.agent_commits({"a": "1"})
    shutil.rmtree(world.path)
    assert await removed(world) == Removed(branch_deleted=True)
    assert await world.clone.commit_at(RESCUE) == stray


async def test_when_git_cannot_forget_it_the_directory_is_put_back(world: GitWorld) -> None:
    locked = world.clone.path / "worktrees" / "issue-1" / "locked"
    locked.unlink()
    locked.mkdir()
    assert isinstance(await removed(world), Kept)
    assert sorted(file.name for file in world.path.iterdir()) == [".git", "README.md"]


def test_bytes_without_permissions_are_deleted_too(tmp_path: Path) -> None:
    deep = tmp_path / "tree" / "deep"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    deep.chmod(0o500)
    (tmp_path / "tree").chmod(0o500)
    delete_bytes(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()
