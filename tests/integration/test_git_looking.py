"""The disk columns of the list of worktrees."""

from pathlib import Path
from typing import Literal

import pytest

from bot.worktrees.summary import Summary, summarize
from tests.support.git_repositories import SANDBOXES, GitRepositories

BRANCH = "threadtree/issue-1"


@pytest.fixture(params=SANDBOXES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> GitRepositories:
    sandbox: Literal["off", "bwrap"] = request.param
    return GitRepositories.make(tmp_path, sandbox)


async def test_size_changes_and_difference_to_githubs_branch_are_shown(world: GitRepositories) -> None:
    await world.created()
    seen = await summarize(world.clone, world.path, BRANCH)
    assert seen is not None
    assert (seen.changed_files, seen.ahead, seen.behind) == (0, None, None)

    world.someone_pushes(BRANCH, {"theirs.txt": "1\n"}, start="origin/main")
    await world.update()
    (world.path / "mine.txt").write_text("x" * 100_000)
    seen = await summarize(world.clone, world.path, BRANCH)

    assert seen is not None
    assert (seen.changed_files, seen.ahead, seen.behind) == (1, 0, 1)
    assert seen.bytes >= 100_000


async def test_a_broken_worktree_shows_a_size_and_a_missing_one_nothing(world: GitRepositories) -> None:
    await world.created()
    (world.path / ".git").write_text("gitdir: /nonexistent\n")
    seen = await summarize(world.clone, world.path, BRANCH)
    assert isinstance(seen, Summary)
    assert seen.changed_files is None

    assert await summarize(world.clone, world.path.with_name("issue-2"), None) is None
