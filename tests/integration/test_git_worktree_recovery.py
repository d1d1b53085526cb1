"""Damaged worktrees are detected, and created again at the same path with their commits."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bot import failpoints
from bot.files import real_path
from bot.locks import try_lock
from bot.model import DetachedHead, IssueBranch
from bot.thread import reasons
from bot.tree.clone.admin import Missing, register
from bot.tree.clone.checkout import Checkout, all_entries, inspect
from bot.tree.clone.clone import CheckoutRefused
from bot.tree.create import Created
from bot.tree.git.errors import GitError, GitProblem
from bot.turn.waiting import passing
from tests.support.git_repositories import RESCUE, GitRepositories, entry_of, git


@pytest.fixture
def world(tmp_path: Path) -> GitRepositories:
    return GitRepositories.make(tmp_path, "bwrap")


async def test_a_lost_detached_worktree_comes_back_where_its_head_was(world: GitRepositories) -> None:
    git(world.remote, "update-ref", "refs/pull/7/head", "main")
    made = await world.created(DetachedHead(world.remote_tip("main"), "refs/pull/7/head"))
    mine = world.agent_commits({"a": "1"})
    shutil.rmtree(world.path)
    assert await world.recreate(None, made.tip) == Created(None, None, mine)


async def test_commits_only_a_lost_head_reached_are_kept(world: GitRepositories) -> None:
    made = await world.created()
    world.agent("checkout", "-q", "--detach")
    stray = world.agent_commits({"a": "1"})
    shutil.rmtree(world.path)
    assert await world.recreate("threadtree/issue-1") == Created("threadtree/issue-1", None, made.tip)
    assert await world.clone.commit_at(RESCUE) == stray


async def test_a_branch_lost_with_its_directory_comes_back_from_the_remote(world: GitRepositories) -> None:
    await world.created()
    shutil.rmtree(world.path)
    shutil.rmtree(world.root / "data" / "private", ignore_errors=True)
    theirs = world.someone_pushes("threadtree/issue-1", {"a": "1"}, start="origin/main")
    await world.update()
    git(world.clone.path, "update-ref", "-d", "refs/heads/threadtree/issue-1")
    assert await world.recreate("threadtree/issue-1") == Created("threadtree/issue-1", None, theirs)


async def test_a_worktree_without_any_commit_left_is_refused(world: GitRepositories) -> None:
    await world.update()
    refused = await world.recreate("never-was", "0123456789012345678901234567890123456789")
    assert refused == CheckoutRefused(reasons.COMMITS_GONE)


def link_elsewhere(world: GitRepositories) -> None:
    world.path.rename(world.root / "moved")
    world.path.symlink_to(world.root / "moved")


def copied_from_another(world: GitRepositories) -> None:
    shutil.move(world.path, world.root / "original")
    shutil.copytree(world.root / "original", world.path.with_name("copy"))
    (world.root / "original").rename(world.path)
    world.path.rename(world.root / "hidden")
    world.path.with_name("copy").rename(world.path)
    admin = world.clone.path / "worktrees" / "issue-1" / "gitdir"
    admin.write_text(f"{world.root}/hidden/.git\n")


@pytest.mark.parametrize("damage", [link_elsewhere, copied_from_another])
async def test_only_a_worktree_of_this_clone_is_valid(
    world: GitRepositories, damage: Callable[[GitRepositories], None]
) -> None:
    await world.created()
    damage(world)
    assert isinstance(await inspect(world.clone, world.path), Missing)


async def test_an_edit_makes_a_worktree_dirty_and_an_ignored_file_does_not(world: GitRepositories) -> None:
    world.someone_pushes("main", {".gitignore": "*.log\n"})
    made = await world.created()
    (world.path / "x.log").write_text("ignored")
    assert await world.seen() == (made.tip, made.branch, 0)
    (world.path / "line\nbreak").write_text("untracked")
    assert await world.seen() == (made.tip, made.branch, 1)


BRANCH = "threadtree/issue-1"


async def with_work(world: GitRepositories) -> str:
    """Make a worktree with an unpushed commit and an uncommitted file; return the commit."""
    await world.created()
    mine = world.agent_commits({"mine": "1"})
    (world.path / "uncommitted").write_text("2")
    return mine


async def recovered(world: GitRepositories) -> Created:
    """Do what a turn does before it starts."""
    async with world.open() as tree:
        await tree.update(world.url)
        found = await tree.look(BRANCH)
        if isinstance(found, Checkout):
            return Created(BRANCH, None, found.commit or "")
        made = await tree.make_again(BRANCH, None, RESCUE, IssueBranch(1))
        assert isinstance(made, Created), made
        return made


@pytest.mark.parametrize("branch", [BRANCH, None])
async def test_a_worktree_that_lost_its_lock_gets_it_again(world: GitRepositories, branch: str | None) -> None:
    if branch is None:
        git(world.remote, "update-ref", "refs/pull/7/head", "main")
        await world.created(DetachedHead(world.remote_tip("main"), "refs/pull/7/head"))
    else:
        await world.created()
    git(world.clone.path, "worktree", "unlock", str(world.path))
    async with world.open() as tree:
        assert isinstance(await tree.look(branch), Checkout)
    entry = await entry_of(world.clone, world.path)
    assert entry is not None
    assert entry.lock_reason == "threadtree: in use"


async def test_a_branch_that_is_gone_under_its_worktree_is_not_started_from_nothing(tmp_path: Path) -> None:
    world = GitRepositories.make(tmp_path)
    mine = await with_work(world)
    git(world.clone.path, "update-ref", "-d", f"refs/heads/{BRANCH}")
    made = await recovered(world)
    assert made.tip == mine
    assert made.kept is not None
    assert await world.seen() == (mine, BRANCH, 0)


def rebasing(world: GitRepositories) -> None:
    world.agent("checkout", "-q", "-b", "other", "origin/main")
    world.agent_commits({"mine": "conflict"})
    git_fails(world, "rebase", BRANCH)


def merging(world: GitRepositories) -> None:
    world.agent("checkout", "-q", "-b", "other", "origin/main")
    world.agent_commits({"mine": "conflict"})
    world.agent("checkout", "-q", BRANCH)
    git_fails(world, "merge", "other")


def detached(world: GitRepositories) -> None:
    world.agent("checkout", "-q", "--detach")
    world.agent_commits({"detached": "1"})


def git_fails(world: GitRepositories, *args: str) -> None:
    with pytest.raises(AssertionError):
        world.agent(*args)


@pytest.mark.parametrize("state", [rebasing, merging, detached])
async def test_an_unfinished_operation_of_an_agent_is_not_damage(
    world: GitRepositories, state: Callable[[GitRepositories], None]
) -> None:
    await world.created()
    world.agent_commits({"mine": "1"})
    state(world)
    before = world.agent("status")
    made = await recovered(world)
    assert made.kept is None
    assert world.agent("status") == before


@pytest.mark.parametrize("problem", [None, GitError(GitProblem.DISK_FULL, "reset", "full")])
@pytest.mark.parametrize("lets_go", [False, True])
async def test_others_have_the_clone_while_files_are_written_where_its_lock_lets_go(
    world: GitRepositories, lets_go: bool, problem: GitError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: dict[str, bool] = {}

    def looked(reached: str) -> None:
        descriptor = try_lock(world.clone.path.with_name(f"{world.clone.path.name}.lock"))
        free[reached] = descriptor is not None
        if descriptor is not None:
            os.close(descriptor)
        if reached == "worktree-checked-out" and problem is not None:
            raise problem

    monkeypatch.setattr(failpoints, "listener", looked)
    if problem is None:
        await world.create(lets_go=lets_go)
        assert free["worktree-locked"] is False
    else:
        with pytest.raises(GitError):
            await world.create(lets_go=lets_go)
        assert free["trashed"] is False
        assert not world.path.exists()
    assert (free["worktree-registered"], free["worktree-checked-out"]) == (False, lets_go)
    looked("the end")
    assert free["the end"]


async def test_a_worktree_whose_clone_is_replaced_while_its_files_are_written_is_made_again(
    world: GitRepositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced(reached: str) -> None:
        if reached == "worktree-checked-out":
            world.clone.path.rename(world.root / "data" / "damaged.git")

    monkeypatch.setattr(failpoints, "listener", replaced)
    with pytest.raises(GitError) as problem:
        await world.create(lets_go=True)
    assert passing(problem.value) is not None
    monkeypatch.undo()
    made = await world.created()
    assert await world.seen() == (made.tip, made.branch, 0)


@pytest.mark.parametrize("left", ["the entry", "the entry and an empty directory"])
async def test_a_registration_can_be_interrupted_anywhere(world: GitRepositories, left: str) -> None:
    await world.update()
    world.path.parent.mkdir(parents=True)
    async with world.open() as tree:
        register(tree.clone.path, world.path, world.remote_tip("main"))
    (world.path / ".git").unlink()
    if left == "the entry":
        world.path.rmdir()
    made = await world.created()
    assert made.kept is None
    assert await world.seen() == (made.tip, "threadtree/issue-1", 0)
    assert [entry.path for entry in await all_entries(world.clone)] == [real_path(world.path)]


async def test_a_link_to_another_repository_with_a_worktree_of_that_name_is_no_worktree(
    world: GitRepositories, tmp_path: Path
) -> None:
    other = await GitRepositories.make(tmp_path / "other").with_worktree()
    await world.with_worktree()
    (world.path / ".git").write_text((other.path / ".git").read_text())
    assert isinstance(await inspect(world.clone, world.path), Missing)
