"""Worktrees: what a new one starts from, how a lost one comes back, how one is brought up to date."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bot.run.worktrees.clone import clone_lock, fetch
from bot.run.worktrees.entries import Missing, Valid, entry_of, inspect
from bot.run.worktrees.start import DetachedHead, HeadBranch, IssueBranch, Refused, RefusedReason
from bot.run.worktrees.worktree import (
    Ahead,
    Created,
    Dirty,
    Diverged,
    FastForwarded,
    NoRemoteBranch,
    OffBranch,
    Synced,
    UpToDate,
    sync,
)
from tests.integration.git_world import RESCUE, SANDBOXES, GitWorld, git

AWKWARD = {"with space.txt": "1", "line\nbreak": "2", "ünïcödé/→": "3", "-dash": "4", ":(glob)*": "5", '"quoted"': "6"}


@pytest.fixture(params=SANDBOXES)
def world(tmp_path: Path, request: pytest.FixtureRequest) -> GitWorld:
    return GitWorld.make(tmp_path, request.param)


async def synced(world: GitWorld, branch: str | None = "threadtree/issue-1") -> Synced:
    async with clone_lock(world.clone) as lock:
        await fetch(lock)
        return await sync(lock, world.path, branch)


async def test_an_issue_starts_from_the_default_branch(world: GitWorld) -> None:
    tip = world.someone_pushes("main", AWKWARD)
    assert await world.create() == Created("threadtree/issue-1", "main", tip)
    assert await inspect(world.clone, world.path) == Valid(tip, "threadtree/issue-1", dirty=False)
    for name, content in AWKWARD.items():
        assert (world.path / name).read_text() == content


async def test_a_live_worktree_is_locked_against_prune(world: GitWorld) -> None:
    await world.created()
    away = world.path.rename(world.root / "away")
    git(world.clone.path, "worktree", "prune", "--expire=now")
    away.rename(world.path)
    assert isinstance(await inspect(world.clone, world.path), Valid)


async def test_an_issue_continues_its_highest_unmerged_branch(world: GitWorld) -> None:
    merged = world.someone_pushes("threadtree/issue-1-3", {"a": "1"}, start="origin/main")
    world.someone_pushes("threadtree/issue-1", {"e": "5"}, start="origin/main")
    second = world.someone_pushes("threadtree/issue-1-2", {"b": "2"}, start="origin/main")
    world.someone_pushes("threadtree/issue-1-turn-9", {"c": "3"}, start="origin/main")
    world.someone_pushes("threadtree/issue-10", {"d": "4"}, start="origin/main")
    git(world.remote, "update-ref", "refs/heads/main", merged)
    assert await world.create() == Created("threadtree/issue-1-2", "main", second)


async def test_after_its_branch_was_merged_an_issue_gets_the_next_one(world: GitWorld) -> None:
    merged = world.someone_pushes("threadtree/issue-1", {"a": "1"}, start="origin/main")
    git(world.remote, "update-ref", "refs/heads/main", merged)
    assert await world.create() == Created("threadtree/issue-1-2", "main", merged)


async def test_commits_that_were_never_pushed_are_continued(world: GitWorld) -> None:
    await world.created()
    mine = world.agent_commits({"a": "1"})
    shutil.rmtree(world.path)
    assert await world.create() == Created("threadtree/issue-1", "main", mine)


async def test_a_local_branch_is_fast_forwarded_and_never_moved_otherwise(world: GitWorld) -> None:
    await world.created()
    behind = world.path.with_name("other")
    mine = world.agent_commits({"a": "1"})
    world.agent("checkout", "-q", "--detach")
    await world.bring_home()
    theirs = world.someone_pushes("threadtree/issue-1", {"b": "2"}, start="origin/main")
    made = await world.created(path=behind)
    assert made.tip == mine
    assert theirs != mine
    git(world.clone.path, "update-ref", "refs/heads/feature", "refs/remotes/origin/main")
    ahead = world.someone_pushes("feature", {"c": "3"}, start="origin/main")
    assert (await world.created(HeadBranch("feature"), behind.with_name("third"))).tip == ahead


async def test_a_pull_request_gets_its_head_branch(world: GitWorld) -> None:
    tip = world.someone_pushes("feature", {"a": "1"}, start="origin/main")
    assert await world.create(HeadBranch("feature")) == Created("feature", None, tip)
    assert world.agent("rev-parse", "--symbolic-full-name", "@{upstream}") == "refs/remotes/origin/feature"


async def test_a_tag_of_the_same_name_is_not_taken_for_the_branch(world: GitWorld) -> None:
    tip = world.someone_pushes("v1", {"a": "1"}, start="origin/main")
    git(world.person, "tag", "v1", "origin/main")
    git(world.person, "push", "-q", "origin", "refs/tags/v1")
    assert await world.create(HeadBranch("v1")) == Created("v1", None, tip)
    shutil.rmtree(world.path)
    assert await world.recreate("v1") == Created("v1", None, tip)


async def test_a_pull_request_without_its_branch_is_refused_with_advice(world: GitWorld) -> None:
    refused = await world.create(HeadBranch("gone"))
    assert isinstance(refused, Refused)
    assert refused.reason is RefusedReason.NO_REMOTE_BRANCH
    assert not world.path.exists()


async def test_a_fork_is_checked_out_detached(world: GitWorld) -> None:
    tip = world.someone_pushes("fork", {"a": "1"}, start="origin/main")
    git(world.remote, "update-ref", "refs/pull/7/head", tip)
    git(world.remote, "update-ref", "-d", "refs/heads/fork")
    assert await world.create(DetachedHead(tip, "refs/pull/7/head")) == Created(None, None, tip)
    assert await inspect(world.clone, world.path) == Valid(tip, None, dirty=False)


async def test_an_empty_repository_is_refused_with_advice(tmp_path: Path) -> None:
    refused = await GitWorld.make(tmp_path, empty=True).create()
    assert isinstance(refused, Refused)
    assert refused.reason is RefusedReason.NO_DEFAULT_BRANCH


async def test_a_branch_checked_out_elsewhere_is_refused(world: GitWorld) -> None:
    await world.created()
    world.agent_commits({"a": "1"})
    refused = await world.create(path=world.path.with_name("other"))
    assert isinstance(refused, Refused)
    assert refused.reason is RefusedReason.BRANCH_IN_USE
    assert not world.path.with_name("other").exists()


async def test_worktrees_made_at_once_do_not_disturb_each_other(world: GitWorld) -> None:
    issues = range(1, 6)
    made = await asyncio.gather(*(world.create(IssueBranch(n), world.path.with_name(f"issue-{n}")) for n in issues))
    assert [isinstance(one, Created) and one.branch for one in made] == [f"threadtree/issue-{n}" for n in issues]


async def test_making_it_twice_gives_the_same_worktree(world: GitWorld) -> None:
    made = await world.created()
    (world.path / "new").write_text("kept")
    assert await world.create() == made
    assert (world.path / "new").read_text() == "kept"
    refused = await world.create(IssueBranch(2))
    assert isinstance(refused, Refused)
    assert refused.reason is RefusedReason.PATH_IN_USE


def cut_off_after_adding(world: GitWorld) -> None:
    branch = ("-b", "threadtree/issue-1", str(world.path), "origin/main")
    git(
        world.clone.path,
        "worktree",
        "add",
        "-q",
        "--no-checkout",
        "--lock",
        "--reason",
        "threadtree: being made",
        *branch,
    )


def unknown_files(world: GitWorld) -> None:
    world.path.mkdir(parents=True)
    (world.path / "precious").write_text("kept")


def symbolic_link(world: GitWorld) -> None:
    world.path.parent.mkdir(parents=True)
    world.path.symlink_to(world.root)


def another_repository(world: GitWorld) -> None:
    world.path.mkdir(parents=True)
    git(world.path, "init", "-q")


@pytest.mark.parametrize("obstacle", [cut_off_after_adding, unknown_files, symbolic_link, another_repository])
async def test_what_stands_in_the_way_is_moved_aside(world: GitWorld, obstacle: Callable[[GitWorld], None]) -> None:
    await world.update()
    obstacle(world)
    assert isinstance(await inspect(world.clone, world.path), Missing)
    made = await world.created()
    assert await inspect(world.clone, world.path) == Valid(made.tip, made.branch, dirty=False)
    assert len(list(world.clone.trash.iterdir())) == 1


async def test_a_directory_deleted_by_hand_comes_back_with_its_commits(world: GitWorld) -> None:
    await world.created()
    mine = world.agent_commits({"a": "1"})
    shutil.rmtree(world.path)
    assert await inspect(world.clone, world.path) == Missing("the directory is gone")
    assert await world.recreate("threadtree/issue-1") == Created("threadtree/issue-1", None, mine)
    assert (world.path / "a").read_text() == "1"
    entry = await entry_of(world.clone, world.path)
    assert entry is not None
    assert entry.lock_reason == "threadtree: in use"


async def test_a_lost_detached_worktree_comes_back_where_its_head_was(world: GitWorld) -> None:
    git(world.remote, "update-ref", "refs/pull/7/head", "main")
    made = await world.created(DetachedHead(world.remote_tip("main"), "refs/pull/7/head"))
    mine = world.agent_commits({"a": "1"})
    shutil.rmtree(world.path)
    assert await world.recreate(None, made.tip) == Created(None, None, mine)


async def test_commits_only_a_lost_head_reached_are_kept(world: GitWorld) -> None:
    made = await world.created()
    world.agent("checkout", "-q", "--detach")
    stray = world.agent_commits({"a": "1"})
    shutil.rmtree(world.path)
    assert await world.recreate("threadtree/issue-1") == Created("threadtree/issue-1", None, made.tip)
    assert await world.clone.commit_at(RESCUE) == stray


async def test_a_branch_lost_with_its_directory_comes_back_from_the_remote(world: GitWorld) -> None:
    await world.created()
    shutil.rmtree(world.path)
    shutil.rmtree(world.root / "data" / "private", ignore_errors=True)
    theirs = world.someone_pushes("threadtree/issue-1", {"a": "1"}, start="origin/main")
    await world.update()
    git(world.clone.path, "update-ref", "-d", "refs/heads/threadtree/issue-1")
    assert await world.recreate("threadtree/issue-1") == Created("threadtree/issue-1", None, theirs)


async def test_nothing_left_to_come_back_from_is_refused(world: GitWorld) -> None:
    await world.update()
    refused = await world.recreate("never-was", "0123456789012345678901234567890123456789")
    assert isinstance(refused, Refused)
    assert refused.reason is RefusedReason.COMMITS_GONE


def link_elsewhere(world: GitWorld) -> None:
    world.path.rename(world.root / "moved")
    world.path.symlink_to(world.root / "moved")


def foreign_git_file(world: GitWorld) -> None:
    (world.path / ".git").write_text(f"gitdir: {world.person}/.git\n")


def no_git_file(world: GitWorld) -> None:
    (world.path / ".git").unlink()


def copied_from_another(world: GitWorld) -> None:
    shutil.move(world.path, world.root / "original")
    shutil.copytree(world.root / "original", world.path.with_name("copy"))
    (world.root / "original").rename(world.path)
    world.path.rename(world.root / "hidden")
    world.path.with_name("copy").rename(world.path)
    admin = world.clone.path / "worktrees" / "issue-1" / "gitdir"
    admin.write_text(f"{world.root}/hidden/.git\n")


@pytest.mark.parametrize("damage", [link_elsewhere, foreign_git_file, no_git_file, copied_from_another, shutil.rmtree])
async def test_only_a_worktree_of_this_clone_is_valid(world: GitWorld, damage: Callable[[object], None]) -> None:
    await world.created()
    damage(world.path if damage is shutil.rmtree else world)
    assert isinstance(await inspect(world.clone, world.path), Missing)


async def test_an_edit_makes_a_worktree_dirty_and_an_ignored_file_does_not(world: GitWorld) -> None:
    world.someone_pushes("main", {".gitignore": "*.log\n"})
    made = await world.created()
    (world.path / "x.log").write_text("ignored")
    assert await inspect(world.clone, world.path) == Valid(made.tip, made.branch, dirty=False)
    (world.path / "line\nbreak").write_text("untracked")
    assert await inspect(world.clone, world.path) == Valid(made.tip, made.branch, dirty=True)


async def nobody_pushed(world: GitWorld) -> Synced:
    return NoRemoteBranch()


async def same_commit(world: GitWorld) -> Synced:
    await world.publish()
    return UpToDate()


async def someone_pushed(world: GitWorld) -> Synced:
    before = world.agent("rev-parse", "HEAD")
    world.someone_pushes("threadtree/issue-1", {"a": "1"}, start="origin/main")
    after = world.someone_pushes("threadtree/issue-1", {"a": "2"})
    return FastForwarded(before, after, 2)


async def agent_committed(world: GitWorld) -> Synced:
    await world.publish()
    world.agent_commits({"mine": "1"})
    return Ahead(1)


async def both_committed(world: GitWorld) -> Synced:
    world.someone_pushes("threadtree/issue-1", {"a": "1"}, start="origin/main")
    world.agent_commits({"mine": "1"})
    return Diverged(1, 1)


async def dirty_and_behind(world: GitWorld) -> Synced:
    world.someone_pushes("threadtree/issue-1", {"a": "1"}, start="origin/main")
    (world.path / "mine").write_text("1")
    return Dirty(1, 0, 1)


async def on_another_branch(world: GitWorld) -> Synced:
    world.agent("switch", "-q", "-c", "idea")
    return OffBranch("idea")


@pytest.mark.parametrize(
    "story",
    [nobody_pushed, same_commit, someone_pushed, agent_committed, both_committed, dirty_and_behind, on_another_branch],
)
async def test_sync_tells_how_the_branch_stands(
    world: GitWorld, story: Callable[[GitWorld], Awaitable[Synced]]
) -> None:
    await world.created()
    expected = await story(world)
    before = world.agent("status", "--porcelain")
    assert await synced(world) == expected
    assert world.agent("status", "--porcelain") == before
    if isinstance(expected, FastForwarded):
        assert world.agent("rev-parse", "HEAD") == expected.after


async def test_a_lock_left_by_a_killed_git_does_not_stop_the_next_turn(world: GitWorld) -> None:
    await world.created()
    await someone_pushed(world)
    (world.state / "index.lock").touch()
    assert isinstance(await synced(world), FastForwarded)
