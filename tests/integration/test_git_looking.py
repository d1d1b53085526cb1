"""The disk columns of the list of worktrees."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bot.model import IssueBranch
from bot.tree.clone.status import statuses
from bot.tree.summary import Summary, last_change, summarize
from tests.support.git_repositories import GitRepositories

BRANCH = "threadtree/issue-1"


@pytest.fixture
def world(tmp_path: Path) -> GitRepositories:
    return GitRepositories.make(tmp_path, "bwrap")


async def test_size_changes_and_difference_to_githubs_branch_are_shown(world: GitRepositories) -> None:
    await world.with_worktree()
    seen = (await summarize(world.clone, {world.path: BRANCH}))[world.path]
    assert (seen.changed_files, seen.ahead, seen.behind) == (0, None, None)

    world.someone_pushes(BRANCH, {"theirs.txt": "1\n"}, start="origin/main")
    await world.update()
    (world.path / "mine.txt").write_text("x" * 100_000)
    seen = (await summarize(world.clone, {world.path: BRANCH}))[world.path]

    assert (seen.changed_files, seen.ahead, seen.behind) == (1, 0, 1)
    assert seen.bytes >= 100_000


async def test_a_broken_worktree_shows_a_size_and_a_missing_one_nothing(world: GitRepositories) -> None:
    await world.with_worktree()
    (world.path / ".git").write_text("gitdir: /nonexistent\n")
    seen = await summarize(world.clone, {world.path: BRANCH, world.path.with_name("issue-2"): None})
    assert seen == {world.path: Summary(seen[world.path].bytes)}


async def test_many_worktrees_are_read_together_and_those_with_submodules_alone(world: GitRepositories) -> None:
    names = ["clean", "changed", "ahead", "detached", "nested", "damaged"]
    paths = {name: world.path.with_name(f"issue-{number}") for number, name in enumerate(names, start=1)}
    for number, path in enumerate(paths.values(), start=1):
        await world.created(IssueBranch(number), path)
    (paths["changed"] / "? # branch.oid\n").write_text("a name like git's own lines")
    (paths["changed"] / "docs").mkdir()
    (paths["changed"] / "docs" / "new.txt").write_text("new")
    tip = world.agent_commits({"mine.txt": "1\n"}, paths["ahead"])
    world.agent("checkout", "-q", "--detach", path=paths["detached"])
    world.agent("init", "-q", "sub", path=paths["nested"])
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    world.agent("-C", "sub", *identity, "commit", "-q", "--allow-empty", "-m", "one", path=paths["nested"])
    world.agent("add", "sub", path=paths["nested"])
    (paths["nested"] / "sub" / "inside.txt").write_text("1")
    (world.view(paths["damaged"]).state / "index").write_text("no index")

    seen = await summarize(world.clone, dict.fromkeys(paths.values()))
    assert {name: seen[path].changed_files for name, path in paths.items()} == {
        **dict.fromkeys(("clean", "ahead", "detached"), 0), "changed": 2, "nested": 1, "damaged": None,
    }  # fmt: skip
    together = await statuses(world.clone, [*paths.values()][:-1])
    assert [*together] == [paths[name] for name in ("clean", "changed", "ahead", "detached")]
    assert together[paths["ahead"]] == (tip, 0)


async def test_the_last_change_is_that_of_the_newest_file_at_any_depth(world: GitRepositories) -> None:
    await world.with_worktree()
    soon, later = (datetime.now(UTC) + timedelta(hours=hours) for hours in (1, 2))
    at = last_change(world.clone, world.path)
    assert at is not None
    assert at < soon

    deep = world.path / "a" / "b" / "c"
    deep.parent.mkdir(parents=True)
    deep.write_text("1")
    os.utime(deep, (later.timestamp(), later.timestamp()))
    assert last_change(world.clone, world.path) == later
    assert last_change(world.clone, world.path.with_name("gone")) is None
