"""Reset: the worktree equals its base on GitHub, its work is rescued, and no branch loses a commit."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bot.model import DetachedHead, HeadBranch, IssueBranch, Start
from bot.tree.clone.checkout import all_entries
from bot.tree.clone.clone import CheckoutRefused
from bot.tree.rescue.message import RescueLabel
from bot.tree.reset import WasReset, reset
from tests.support.damage import edit
from tests.support.failpoints import KilledError
from tests.support.git_repositories import GitRepositories, git

BRANCH = "threadtree/issue-1"
SEQUEL = "threadtree/issue-1-2"
LABEL = RescueLabel(7, BRANCH, (1,), datetime(2026, 5, 1, 12, tzinfo=UTC))
FILES = {".gitignore": "*.log\n", "deep/tracked": "tracked\n"}


@pytest.fixture
async def world(tmp_path: Path) -> GitRepositories:
    return await GitRepositories.make(tmp_path, "bwrap", FILES).with_worktree()


async def tried(
    world: GitRepositories, label: RescueLabel = LABEL, start: Start | None = None, merged_head: str | None = None
) -> WasReset | CheckoutRefused:
    async with world.open() as tree:
        await tree.fetch()
        return await tree.reset(start or IssueBranch(1), label, merged_head)


async def was_reset(
    world: GitRepositories, label: RescueLabel = LABEL, start: Start | None = None, merged_head: str | None = None
) -> WasReset:
    result = await tried(world, label, start, merged_head)
    assert isinstance(result, WasReset), result
    assert await world.seen() == (result.after, result.branch, 0)
    assert (await world.looked_at()).operation_in_progress() is None
    assert world.agent("status", "--porcelain", "--ignored=matching") == ""
    assert not any(line[0].islower() or line[0] == "S" for line in world.agent("ls-files", "-v").splitlines())
    if result.branch is not None:
        assert await world.clone.commit_at(f"refs/heads/{result.branch}") == result.after
    assert [entry.path for entry in await all_entries(world.clone)].count(world.path) == 1
    return result


async def test_a_worktree_goes_on_with_the_prefix_that_it_began_with(world: GitRepositories) -> None:
    path, old = world.path.with_name("old"), IssueBranch(1, "old-")
    assert (await world.created(old, path)).branch == "old-issue-1"
    world.someone_pushes("old-issue-1", {"mine.txt": "1"}, start="origin/main")
    async with world.open() as tree:
        await tree.fetch()
        after = await reset(tree, path, old, replace(LABEL, branch="old-issue-1"))
    assert isinstance(after, WasReset), after
    assert after.branch == "old-issue-1-2"


def rescued_file(world: GitRepositories, result: WasReset, name: str) -> str:
    assert result.rescue is not None
    return git(world.clone.path, "show", f"{result.rescue.sha}:{name}")


async def test_all_work_is_rescued_and_the_tree_equals_the_default_branch(world: GitRepositories) -> None:
    edit(world)
    (world.path / "new").write_text("new")
    (world.path / "x.log").write_text("ignored")
    theirs = world.someone_pushes("main", {"theirs": "1"})

    result = await was_reset(world)

    assert (result.branch, result.base_branch, result.after) == (BRANCH, "main", theirs)
    assert sorted(file.name for file in world.path.iterdir()) == [".git", ".gitignore", "README.md", "deep", "theirs"]
    assert (world.path / "README.md").read_text() == "hello\n"
    assert (world.path / "deep" / "tracked").read_text() == "tracked\n"
    assert [rescued_file(world, result, name) for name in ("README.md", "new")] == ["edited", "new"]


async def test_a_clean_worktree_needs_no_rescue(world: GitRepositories) -> None:
    result = await was_reset(world)
    assert (result.branch, result.rescue, result.kept) == (BRANCH, None, None)


# Branches only move forward


async def test_a_branch_with_unpublished_commits_stays_and_the_next_one_is_used(world: GitRepositories) -> None:
    mine = world.agent_commits({"a": "1"})

    result = await was_reset(world)

    assert (result.branch, result.after) == (SEQUEL, world.remote_tip("main"))
    assert await world.clone.commit_at(f"refs/heads/{BRANCH}") == mine
    assert result.rescue is not None
    assert await world.clone.is_ancestor(mine, result.rescue.sha)


async def test_a_pushed_branch_with_commits_of_its_own_stays(world: GitRepositories) -> None:
    mine = world.agent_commits({"a": "1"})
    await world.publish()

    result = await was_reset(world)

    assert (result.branch, result.rescue) == (SEQUEL, None)
    assert (world.remote_tip(BRANCH), await world.clone.commit_at(f"refs/heads/{BRANCH}")) == (mine, mine)


async def test_the_next_branch_is_free_here_and_on_the_remote(world: GitRepositories) -> None:
    world.agent_commits({"a": "1"})
    world.someone_pushes(SEQUEL, {"b": "1"}, start="origin/main")
    await world.bring_home()
    git(world.clone.path, "branch", "threadtree/issue-1-3", BRANCH)

    assert (await was_reset(world)).branch == "threadtree/issue-1-4"


async def test_a_merged_branch_is_not_used_again(world: GitRepositories) -> None:
    mine = world.agent_commits({"a": "1"})
    await world.publish()
    git(world.remote, "update-ref", "refs/heads/main", mine)
    assert (await was_reset(world, merged_head=mine)).branch == SEQUEL


async def test_a_branch_that_its_base_contains_is_used_again(world: GitRepositories) -> None:
    mine = world.agent_commits({"a": "1"})
    await world.publish()
    git(world.remote, "update-ref", "refs/heads/main", mine)
    later = world.someone_pushes("main", {"b": "1"})
    result = await was_reset(world)
    assert (result.branch, result.after) == (BRANCH, later)


async def test_a_pull_requests_branch_is_reset_to_githubs_commit(world: GitRepositories) -> None:
    other = world.path.with_name("pr-2")
    theirs = world.someone_pushes("feature", {"a": "1"}, start="origin/main")
    await world.created(HeadBranch("feature"), other)
    mine = world.agent_commits({"mine": "1"}, other)
    label = replace(LABEL, branch="feature")

    async with world.open() as tree:
        await tree.fetch()
        result = await reset(tree, other, HeadBranch("feature"), label)

    assert isinstance(result, WasReset)
    assert (result.branch, result.after) == ("feature", theirs)
    assert await world.seen(other) == (theirs, "feature", 0)
    assert result.rescue is not None
    assert await world.clone.is_ancestor(mine, result.rescue.sha)


async def test_a_detached_worktree_goes_to_the_pull_requests_head(world: GitRepositories) -> None:
    tip = world.someone_pushes("fork", {"a": "1"}, start="origin/main")
    git(world.remote, "update-ref", "refs/pull/7/head", tip)
    start = DetachedHead(tip, "refs/pull/7/head")
    label = replace(LABEL, branch=None)
    world.agent("checkout", "-q", "--detach")
    mine = world.agent_commits({"mine": "1"})

    result = await was_reset(world, label, start)

    assert (result.branch, result.after) == (None, tip)
    assert result.rescue is not None
    assert await world.clone.is_ancestor(mine, result.rescue.sha)


async def test_a_reset_without_a_branch_on_github_is_refused_and_changes_nothing(world: GitRepositories) -> None:
    edit(world)
    result = await tried(world, replace(LABEL, branch="feature"), HeadBranch("feature"))
    assert isinstance(result, CheckoutRefused)
    assert "Restore it there" in result.next_step
    assert (world.path / "README.md").read_text() == "edited"


async def test_a_reset_drops_the_branches_and_stashes_of_the_sandbox(world: GitRepositories) -> None:
    world.agent("checkout", "-q", "-b", "/".join(["deep"] * 30))
    mine = world.agent_commits({"a": "1"})
    (world.path / "a").write_text("2")
    world.agent("stash", "--quiet")
    world.agent("pack-refs", "--all")

    result = await was_reset(world)

    assert result.rescue is not None
    await world.clone.run("merge-base", "--is-ancestor", mine, result.rescue.sha)
    shown = world.agent("for-each-ref", "--format=%(refname)").split()
    assert [ref for ref in shown if not ref.startswith("refs/remotes/")] == [f"refs/heads/{result.branch}"]
    assert world.agent("stash", "list") == ""


# Interrupted and repeated


@pytest.mark.parametrize("cut", ["trashed", "worktree-checked-out"])
async def test_a_repeated_reset_ends_the_same_and_one_rescue_has_everything(
    world: GitRepositories, cut: str, kill_at: Callable[[str], None]
) -> None:
    mine = world.agent_commits({"a": "1"})
    edit(world)
    kill_at(cut)
    with pytest.raises(KilledError):
        await tried(world)

    result = await was_reset(world)

    assert result.branch == SEQUEL
    assert rescued_file(world, result, "README.md") == "edited"
    assert await world.clone.commit_at(f"refs/heads/{BRANCH}") == mine
    refs = git(world.clone.path, "for-each-ref", "--format=%(refname)", "refs/threadtree/rescue").split()
    assert result.rescue is not None
    assert refs == [result.rescue.ref]
    assert (result.rescue.files, result.rescue.commits) == (1, 1)
    assert await world.clone.is_ancestor(mine, result.rescue.sha)
