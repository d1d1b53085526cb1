"""Worktrees: the start of a new one, the recovery of a lost one, the update of an old one."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bot.model import DetachedHead, HeadBranch, IssueBranch
from bot.thread import reasons
from bot.tree.clone.admin import Missing
from bot.tree.clone.checkout import Seen, inspect
from bot.tree.clone.clone import CheckoutRefused
from bot.tree.create import Created
from tests.support.git_repositories import GitRepositories, git

AWKWARD = {"with space.txt": "1", "line\nbreak": "2", "ünïcödé/→": "3", "-dash": "4", ":(glob)*": "5", '"quoted"': "6"}


@pytest.fixture
def world(tmp_path: Path) -> GitRepositories:
    return GitRepositories.make(tmp_path, "bwrap")


async def test_an_issue_starts_from_the_default_branch(world: GitRepositories) -> None:
    tip = world.someone_pushes("main", AWKWARD)
    assert await world.create() == Created("threadtree/issue-1", "main", tip)
    assert await world.seen() == (tip, "threadtree/issue-1", 0)
    for name, content in AWKWARD.items():
        assert (world.path / name).read_text() == content


async def test_a_live_worktree_is_locked_against_prune(world: GitRepositories) -> None:
    await world.created()
    away = world.path.rename(world.root / "away")
    git(world.clone.path, "worktree", "prune", "--expire=now")
    away.rename(world.path)
    assert isinstance(await inspect(world.clone, world.path), Seen)


async def test_plain_git_knows_a_worktree_beside_an_operators_of_the_same_name(world: GitRepositories) -> None:
    await world.update()
    mine = world.root / "mine" / world.path.name
    git(world.clone.path, "worktree", "add", "-q", "--detach", str(mine), "refs/remotes/origin/main")
    made = await world.created()
    listed = git(world.clone.path, "worktree", "list", "--porcelain").split("\n\n")
    own = f"worktree {world.path}\nHEAD {made.tip}\nbranch refs/heads/{made.branch}\nlocked threadtree: in use"
    assert sorted(listed[1:]) == sorted([f"worktree {mine}\nHEAD {made.tip}\ndetached", own])
    git(world.clone.path, "worktree", "repair", str(world.path))
    git(world.clone.path, "worktree", "remove", str(mine))
    assert git(world.path, "symbolic-ref", "--short", "HEAD") == made.branch
    assert await world.seen() == (made.tip, made.branch, 0)


async def test_an_issue_continues_its_highest_unmerged_branch(world: GitRepositories) -> None:
    merged = world.someone_pushes("threadtree/issue-1-3", {"a": "1"}, start="origin/main")
    world.someone_pushes("threadtree/issue-1", {"e": "5"}, start="origin/main")
    second = world.someone_pushes("threadtree/issue-1-2", {"b": "2"}, start="origin/main")
    world.someone_pushes("threadtree/issue-1-turn-9", {"c": "3"}, start="origin/main")
    world.someone_pushes("threadtree/issue-10", {"d": "4"}, start="origin/main")
    git(world.remote, "update-ref", "refs/heads/main", merged)
    assert await world.create() == Created("threadtree/issue-1-2", "main", second)


async def test_after_its_branch_was_merged_an_issue_gets_the_next_one(world: GitRepositories) -> None:
    merged = world.someone_pushes("threadtree/issue-1", {"a": "1"}, start="origin/main")
    git(world.remote, "update-ref", "refs/heads/main", merged)
    assert await world.create() == Created("threadtree/issue-1-2", "main", merged)


async def test_commits_that_were_never_pushed_are_continued(world: GitRepositories) -> None:
    await world.created()
    mine = world.agent_commits({"a": "1"})
    shutil.rmtree(world.path)
    assert await world.create() == Created("threadtree/issue-1", "main", mine)


async def test_a_local_branch_is_fast_forwarded_and_never_moved_otherwise(world: GitRepositories) -> None:
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


async def test_a_pull_request_gets_its_head_branch(world: GitRepositories) -> None:
    tip = world.someone_pushes("feature", {"a": "1"}, start="origin/main")
    assert await world.create(HeadBranch("feature")) == Created("feature", None, tip)
    assert world.agent("rev-parse", "--symbolic-full-name", "@{upstream}") == "refs/remotes/origin/feature"


async def test_a_tag_of_the_same_name_is_not_taken_for_the_branch(world: GitRepositories) -> None:
    tip = world.someone_pushes("v1", {"a": "1"}, start="origin/main")
    git(world.person, "tag", "v1", "origin/main")
    git(world.person, "push", "-q", "origin", "refs/tags/v1")
    assert await world.create(HeadBranch("v1")) == Created("v1", None, tip)
    shutil.rmtree(world.path)
    assert await world.recreate("v1") == Created("v1", None, tip)


async def test_a_pull_request_without_its_branch_is_refused_with_advice(world: GitRepositories) -> None:
    refused = await world.create(HeadBranch("gone"))
    assert isinstance(refused, CheckoutRefused)
    assert refused.why == "no-remote-branch"
    assert not world.path.exists()


async def test_a_fork_is_checked_out_detached(world: GitRepositories) -> None:
    tip = world.someone_pushes("fork", {"a": "1"}, start="origin/main")
    git(world.remote, "update-ref", "refs/pull/7/head", tip)
    git(world.remote, "update-ref", "-d", "refs/heads/fork")
    assert await world.create(DetachedHead(tip, "refs/pull/7/head")) == Created(None, None, tip)
    assert await world.seen() == (tip, None, 0)


async def test_an_empty_repository_is_refused_with_advice(tmp_path: Path) -> None:
    refused = await GitRepositories.make(tmp_path, empty=True).create()
    assert refused == CheckoutRefused(reasons.NO_FIRST_COMMIT)


async def test_a_branch_checked_out_elsewhere_is_refused(world: GitRepositories) -> None:
    await world.created()
    world.agent_commits({"a": "1"})
    refused = await world.create(path=world.path.with_name("other"))
    assert isinstance(refused, CheckoutRefused)
    assert refused.why == "branch-in-use"
    assert not world.path.with_name("other").exists()


@pytest.mark.parametrize(
    "begun",
    ["rebase --merge origin/main", "rebase --apply origin/main", "bisect start && git checkout --quiet --detach"],
)
async def test_a_branch_that_another_worktree_will_go_back_to_is_refused(tmp_path: Path, begun: str) -> None:
    world = GitRepositories.make(tmp_path)  # in a sandbox, what an agent begins is not seen in the clone
    await world.created()
    world.agent_commits({"a": "mine"})
    world.someone_pushes("main", {"a": "theirs"})
    await world.update()
    git(world.path, "-c", f"alias.begin=!git {begun} || true", "begin")
    assert (await world.looked_at()).branch is None
    refused = await world.create(path=world.path.with_name("other"))
    assert isinstance(refused, CheckoutRefused)
    assert refused.why == "branch-in-use"


async def test_worktrees_made_at_once_do_not_disturb_each_other(world: GitRepositories) -> None:
    issues = range(1, 6)
    made = await asyncio.gather(*(world.create(IssueBranch(n), world.path.with_name(f"issue-{n}")) for n in issues))
    assert [isinstance(one, Created) and one.branch for one in made] == [f"threadtree/issue-{n}" for n in issues]


async def test_a_repeated_creation_returns_the_same_worktree(world: GitRepositories) -> None:
    made = await world.created()
    (world.path / "new").write_text("kept")
    assert await world.create() == made
    assert (world.path / "new").read_text() == "kept"


async def test_a_finished_worktree_of_another_start_is_kept_and_gives_way(world: GitRepositories) -> None:
    await world.created()
    stray = world.agent_commits({"a": "1"})
    (world.path / "new").write_text("kept")
    made = await world.created(IssueBranch(2))
    assert made.branch == "threadtree/issue-2"
    assert made.kept is not None
    assert (world.root / "data" / "kept" / made.kept / "new").read_text() == "kept"
    assert await world.clone.commit_at("refs/heads/threadtree/issue-1") == stray


def cut_off_after_adding(world: GitRepositories) -> None:
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


def unknown_files(world: GitRepositories) -> None:
    world.path.mkdir(parents=True)
    (world.path / "precious").write_text("kept")


@pytest.mark.parametrize("obstacle", [cut_off_after_adding, unknown_files])
async def test_a_directory_in_the_way_is_moved_aside(
    world: GitRepositories, obstacle: Callable[[GitRepositories], None]
) -> None:
    await world.update()
    obstacle(world)
    assert isinstance(await inspect(world.clone, world.path), Missing)
    made = await world.created()
    assert await world.seen() == (made.tip, made.branch, 0)
    assert bool(made.kept) is (obstacle is not cut_off_after_adding)
    assert made.kept is None or (world.root / "data" / "kept" / made.kept).exists()
