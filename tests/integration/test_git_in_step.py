"""A worktree follows changes on GitHub if that loses nothing."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bot.model import DetachedHead, HeadBranch, IssueBranch
from bot.tree.git.runner import Completed, Git
from bot.tree.push import Pushed
from bot.tree.sync import (
    Synced,
)
from tests.support.git_repositories import RESCUE, GitRepositories, git
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture
def world(tmp_path: Path) -> GitRepositories:
    return GitRepositories.make(tmp_path, "bwrap")


async def synced(world: GitRepositories, branch: str | None = "threadtree/issue-1") -> Synced | None:
    async with world.open() as tree:
        await tree.fetch()
        return await tree.sync(branch, RESCUE)


def is_forwarded(found: Synced | None) -> bool:
    return found is not None and found.how == "fast-forwarded"


async def nobody_pushed(world: GitRepositories) -> Synced | None:
    return None


async def same_commit(world: GitRepositories) -> Synced | None:
    await world.publish()
    return None


async def someone_pushed(world: GitRepositories) -> Synced | None:
    world.someone_pushes("threadtree/issue-1", {"a": "1"}, start="origin/main")
    world.someone_pushes("threadtree/issue-1", {"a": "2"})
    return Synced("fast-forwarded", behind=2)


async def agent_committed(world: GitRepositories) -> Synced | None:
    await world.publish()
    world.agent_commits({"mine": "1"})
    return None


async def both_committed(world: GitRepositories) -> Synced | None:
    world.someone_pushes("threadtree/issue-1", {"a": "1"}, start="origin/main")
    world.agent_commits({"mine": "1"})
    return Synced("diverged", 1, 1)


async def dirty_and_behind(world: GitRepositories) -> Synced | None:
    world.someone_pushes("threadtree/issue-1", {"a": "1"}, start="origin/main")
    (world.path / "mine").write_text("1")
    return Synced("dirty", behind=1, files=1)


async def on_another_branch(world: GitRepositories) -> Synced | None:
    world.agent("switch", "-q", "-c", "idea")
    return Synced("off-branch", branch="idea")


@pytest.mark.parametrize(
    "story",
    [nobody_pushed, same_commit, someone_pushed, agent_committed, both_committed, dirty_and_behind, on_another_branch],
)
async def test_sync_reports_the_state_of_the_branch(
    world: GitRepositories, story: Callable[[GitRepositories], Awaitable[Synced | None]]
) -> None:
    await world.with_worktree()
    expected = await story(world)
    before = world.agent("status", "--porcelain")
    assert await synced(world) == expected
    assert world.agent("status", "--porcelain") == before
    if is_forwarded(expected):
        assert world.agent("rev-parse", "HEAD") == world.remote_tip("threadtree/issue-1")


async def test_a_lock_left_by_a_killed_git_does_not_stop_the_next_turn(world: GitRepositories) -> None:
    await world.with_worktree()
    await someone_pushed(world)
    (world.state / "index.lock").touch()
    assert is_forwarded(await synced(world))


async def test_no_git_of_a_turn_but_the_fetch_reads_all_registered_worktrees(
    world: GitRepositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.update()
    other = world.clone.path / "worktrees" / "other"
    other.mkdir(parents=True)
    os.mkfifo(other / "gitdir")  # who opens it waits for ever
    on_clone = Git.on_clone

    async def run(self: Git, clone: Path, *args: str, **options: Any) -> Completed:
        if args[0] != "fetch":
            return await on_clone(self, clone, *args, **options)
        away = other.rename(clone / "other")
        fetched = await on_clone(self, clone, *args, **options)
        away.rename(other)
        return fetched

    monkeypatch.setattr(Git, "on_clone", run)
    world.someone_pushes("feature", {"a": "1"}, start="origin/main")
    async with asyncio.timeout(PATIENCE_SECONDS):
        await world.created(HeadBranch("feature"))
        world.someone_pushes("feature", {"a": "2"})
        assert is_forwarded(await synced(world, "feature"))
        world.agent_commits({"b": "1"})
        world.someone_pushes("feature", {"a": "3"})
        assert await world.pushed("feature") == Pushed("merged")
        world.someone_pushes("second", {"c": "1"}, start="origin/feature")
        async with world.open() as tree:
            await tree.fetch()
            assert await tree.switch("feature", "second") is None


async def followed(world: GitRepositories) -> Synced | None:
    async with world.open() as tree:
        await tree.fetch()
        return await tree.sync("threadtree/issue-1", RESCUE, IssueBranch(1), "main")


async def with_published_work(world: GitRepositories) -> str:
    await world.with_worktree()
    mine = world.agent_commits({"mine": "1"})
    await world.publish()
    assert await followed(world) is None
    return mine


async def test_after_the_default_branch_was_renamed_it_follows_the_new_one(world: GitRepositories) -> None:
    await world.with_worktree()
    after = world.someone_pushes("trunk", {"later": "1"}, start="origin/main")
    git(world.remote, "symbolic-ref", "HEAD", "refs/heads/trunk")
    git(world.remote, "update-ref", "-d", "refs/heads/main")
    assert await followed(world) == Synced("fast-forwarded", behind=1)
    assert world.agent("rev-parse", "HEAD") == after


def merged(world: GitRepositories) -> str:
    world.someone_pushes("main", {"later": "1"})
    git(world.person, "merge", "-q", "--no-ff", "--no-edit", "origin/threadtree/issue-1")
    git(world.person, "push", "-q", "origin", "HEAD:main")
    return world.remote_tip("main")


def merged_and_deleted(world: GitRepositories) -> str:
    tip = merged(world)
    git(world.remote, "update-ref", "-d", "refs/heads/threadtree/issue-1")
    return tip


def squashed_and_deleted(world: GitRepositories) -> str:
    world.someone_pushes("main", {"later": "1"})
    git(world.person, "merge", "-q", "--squash", "origin/threadtree/issue-1")
    git(world.person, "commit", "-q", "-m", "squashed")
    git(world.person, "push", "-q", "origin", "HEAD:main")
    git(world.remote, "update-ref", "-d", "refs/heads/threadtree/issue-1")
    return world.remote_tip("main")


@pytest.mark.parametrize("finish", [merged, merged_and_deleted, squashed_and_deleted])
async def test_after_its_branch_was_merged_the_work_continues_on_the_next_branch(
    world: GitRepositories, finish: Callable[[GitRepositories], str]
) -> None:
    mine = await with_published_work(world)
    base = finish(world)
    assert await followed(world) == Synced("continued", branch="threadtree/issue-1-2", base_branch="main")
    assert world.agent("symbolic-ref", "HEAD") == "refs/heads/threadtree/issue-1-2"
    assert (world.path / "later").read_text() == "1"
    assert await world.clone.commit_at("refs/heads/threadtree/issue-1") == mine, "the old branch stays"
    assert await world.clone.commit_at("refs/heads/threadtree/issue-1-2") == base
    assert await world.seen() == (base, "threadtree/issue-1-2", 0)


async def test_unpushed_commits_stay_on_the_merged_branch(world: GitRepositories) -> None:
    await with_published_work(world)
    unseen = world.agent_commits({"unseen": "1"})
    merged(world)
    assert await followed(world) is None
    assert world.agent("rev-parse", "HEAD") == unseen


async def test_uncommitted_files_stay_on_the_merged_branch(world: GitRepositories) -> None:
    await with_published_work(world)
    (world.path / "unseen").write_text("1")
    merged(world)
    assert await followed(world) == Synced("dirty", files=1)


async def test_an_unmerged_deleted_branch_differs_from_a_branch_never_pushed(world: GitRepositories) -> None:
    await world.with_worktree()
    world.agent_commits({"mine": "1"})
    assert await followed(world) is None
    await world.publish()
    assert await followed(world) is None
    git(world.remote, "update-ref", "-d", "refs/heads/threadtree/issue-1")
    assert await followed(world) == Synced("branch-deleted")
    (world.path / "more").write_text("1")
    assert await followed(world) == Synced("branch-deleted")


async def test_a_force_push_is_distinguished_from_a_push(world: GitRepositories) -> None:
    await with_published_work(world)
    amended(world)
    assert await followed(world) == Synced("followed", 1, 1)


async def test_an_ignored_file_is_not_overwritten_by_following(world: GitRepositories) -> None:
    world.someone_pushes("main", {".gitignore": "*.log\n"})
    await with_published_work(world)
    (world.path / "x.log").write_text("precious")
    git(world.person, "fetch", "-q", "origin")
    git(world.person, "checkout", "-q", "-B", "t", "origin/threadtree/issue-1")
    (world.person / "x.log").write_text("theirs")
    git(world.person, "add", "-f", "x.log")
    world.push_commit("threadtree/issue-1", {})
    assert await followed(world) == Synced("diverged", 0, 1)
    assert (world.path / "x.log").read_text() == "precious"


def amended(world: GitRepositories) -> str:
    git(world.person, "fetch", "-q", "origin")
    git(world.person, "checkout", "-q", "-B", "t", "origin/threadtree/issue-1")
    git(world.person, "commit", "-q", "--amend", "-m", "another message")
    git(world.person, "push", "-q", "--force", "origin", "HEAD:threadtree/issue-1")
    return world.remote_tip("threadtree/issue-1")


async def test_an_agent_that_takes_over_a_force_push_pushes_to_the_branch_again(world: GitRepositories) -> None:
    await with_published_work(world)
    amended(world)
    await followed(world)
    world.agent("reset", "-q", "--hard", "origin/threadtree/issue-1")
    mine = world.agent_commits({"more": "1"})
    assert (await world.pushed()).how == "pushed"
    assert world.remote_tip("threadtree/issue-1") == mine


async def test_a_new_head_of_a_fork_overwrites_no_ignored_file(world: GitRepositories) -> None:
    head = world.someone_pushes("main", {".gitignore": "results\n"})
    git(world.remote, "update-ref", "refs/pull/3/head", head)
    await world.created(DetachedHead(head, "refs/pull/3/head"))
    (world.path / "results").write_text("hours of work")
    (world.person / "results").write_text("theirs")
    git(world.person, "add", "-f", "results")
    newer = world.push_commit("main", {"more": "1"})

    async with world.open() as tree:
        await tree.fetch()
        assert await tree.sync_detached(newer, RESCUE) == Synced("diverged", 0, 1)

    assert (world.path / "results").read_text() == "hours of work"
    assert world.agent("rev-parse", "HEAD") == head
