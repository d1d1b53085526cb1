"""A clone with many branches: the remote is asked what it has, and only what changed is fetched."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from bot import process
from bot.clones import listing
from bot.clones.clone import clone_lock
from bot.clones.fetch import update
from bot.clones.listing import Listing, list_remote
from bot.process import ProcessGroup
from tests.support.git_repositories import GIT, GitRepositories, git

REFS = ("for-each-ref", "--format=%(objectname) %(refname:lstrip=-1)")


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GitRepositories:
    """Return a clone whose three branches are many."""
    monkeypatch.setattr(listing, "MANY_BRANCHES", 3)
    world = GitRepositories.make(tmp_path)
    for branch in ("feature", "other"):
        world.someone_pushes(branch, {branch: "1"}, start="origin/main")
    await world.update()
    return world


async def listed(world: GitRepositories) -> Listing | None:
    return await list_remote(world.clone.git, world.clone.path, world.url)


async def update_with(world: GitRepositories, known: Listing | None) -> list[str]:
    """Update the clone by what is known of the remote; return the fetches of git that started."""
    fetches: list[str] = []

    async def answer() -> Listing | None:
        return known

    async def start(argv: Sequence[str], *args: object, **options: object) -> ProcessGroup:
        fetches.extend([" ".join(argv)] if "fetch" in argv else [])
        return await process.start(argv, *args, **options)  # type: ignore[arg-type]  # passed on as they are

    with patch("bot.git.runner.start", start):
        async with clone_lock(world.clone) as lock:
            await update(lock, world.url, None, answer())
    return fetches


async def is_like_the_remote(world: GitRepositories) -> bool:
    theirs = git(world.remote, *REFS, "refs/heads", "refs/tags")
    return git(world.clone.path, *REFS, "refs/remotes/origin", "refs/tags") == theirs


async def test_nothing_is_fetched_where_nothing_changed(world: GitRepositories) -> None:
    assert await update_with(world, await listed(world)) == []
    assert await is_like_the_remote(world)


async def test_what_moved_appeared_and_went_is_fetched_by_name(world: GitRepositories) -> None:
    git(world.clone.path, "pack-refs", "--all")
    world.someone_pushes("main", {"a": "1"})
    world.someone_pushes("new/ü", {"b": "1"}, start="origin/main")
    git(world.remote, "update-ref", "-d", "refs/heads/feature")

    [fetched] = await update_with(world, await listed(world))

    assert "refs/heads/main*:" in fetched
    assert "other" not in fetched
    assert await is_like_the_remote(world)


async def test_a_branch_may_become_a_folder_of_branches(world: GitRepositories) -> None:
    git(world.remote, "update-ref", "-d", "refs/heads/feature")
    git(world.remote, "update-ref", "refs/heads/feature/one", "main")
    await update_with(world, await listed(world))
    assert await is_like_the_remote(world)


async def test_what_is_newer_than_the_list_stays(world: GitRepositories) -> None:
    before = await listed(world)
    world.someone_pushes("main", {"a": "1"})
    world.someone_pushes("new", {"b": "1"}, start="origin/main")
    git(world.remote, "update-ref", "-d", "refs/heads/feature")
    await world.update()

    await update_with(world, before)

    assert await is_like_the_remote(world)


async def test_after_a_long_wait_for_the_clone_all_is_fetched(world: GitRepositories) -> None:
    before = await listed(world)
    assert before is not None
    world.someone_pushes("main", {"a": "1"})
    await update_with(world, replace(before, at=asyncio.get_running_loop().time() - 6))
    assert await is_like_the_remote(world)


async def test_where_much_changed_all_is_fetched(world: GitRepositories) -> None:
    tip = world.remote_tip("main")
    created = "".join(f"create refs/heads/b{number} {tip}\n" for number in range(51))
    await GIT.run(f"--git-dir={world.remote}", "update-ref", "--stdin", cwd=None, input=created.encode())
    [fetched] = await update_with(world, await listed(world))
    assert "refs/heads/" not in fetched
    assert await is_like_the_remote(world)


async def test_tags_come_as_with_any_fetch(world: GitRepositories) -> None:
    git(world.remote, "tag", "v1", "main")
    git(world.remote, "-c", "user.name=m", "-c", "user.email=m@e", "tag", "-a", "-m", "Second", "v2", "other")
    await update_with(world, await listed(world))
    assert await is_like_the_remote(world)
    assert await update_with(world, await listed(world)) == []

    # No branch has this commit: it is not fetched, now or later.
    tree = world.remote_tip("main") + "^{tree}"
    alone = git(world.remote, "-c", "user.name=m", "-c", "user.email=m@e", "commit-tree", "-m", "Alone", tree)
    git(world.remote, "tag", "v3", alone)
    assert await update_with(world, await listed(world)) == []


async def test_with_few_branches_or_without_a_clone_nothing_is_asked(
    world: GitRepositories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await listed(world) is not None
    assert await list_remote(GIT, tmp_path / "none.git", world.url) is None
    monkeypatch.setattr(listing, "MANY_BRANCHES", 4)
    assert await listed(world) is None


async def test_a_remote_that_does_not_answer_is_left_to_the_fetch(world: GitRepositories, tmp_path: Path) -> None:
    moved = world.remote.rename(tmp_path / "moved.git")
    assert await listed(world) is None
    moved.rename(world.remote)
    world.someone_pushes("main", {"a": "1"})
    await update_with(world, None)
    assert await is_like_the_remote(world)


async def test_the_head_that_newer_git_makes_is_no_change(world: GitRepositories) -> None:
    git(world.clone.path, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    assert await update_with(world, await listed(world)) == []
