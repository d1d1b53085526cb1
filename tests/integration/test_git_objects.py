"""One git process answers questions about a clone's objects, as a new process would each time."""

import os
import signal
from pathlib import Path

import pytest

from bot.tree.clone.clone import Clone
from bot.tree.git.objects import Objects
from tests.support.git_repositories import GitRepositories, git


@pytest.fixture
async def world(tmp_path: Path) -> GitRepositories:
    world = GitRepositories.make(tmp_path, "off")
    await world.update()
    return world


def of(clone: Clone) -> Objects:
    assert clone.objects is not None
    return clone.objects


async def test_a_reader_sees_what_is_written_after_its_start(world: GitRepositories) -> None:
    async with world.clone.reading() as clone:
        first = await clone.commit_at("refs/remotes/origin/main")
        assert first is not None
        assert await clone.commit_at("refs/heads/other") is None

        after = world.someone_pushes("main", {"a": "1"})
        git(clone.path, "fetch", "-q", "origin")
        git(clone.path, "branch", "other", after)
        git(clone.path, "pack-refs", "--all")
        git(clone.path, "repack", "-q", "-a", "-d")

        assert await clone.commit_at("refs/remotes/origin/main") == after
        assert await clone.commit_at("refs/heads/other") == after
        assert await clone.commit_at(first) == first


@pytest.mark.parametrize("name", ["refs/heads/a\ninfo HEAD", "0" * 40, "no such thing", "HEAD^{tree}"])
async def test_odd_names_are_nothing_and_disturb_no_later_answer(world: GitRepositories, name: str) -> None:
    async with world.clone.reading() as clone:
        assert await clone.commit_at(name) is None
        assert await clone.commit_at("refs/remotes/origin/main") == git(clone.path, "rev-parse", "origin/main")


async def test_a_reader_that_was_killed_starts_again(world: GitRepositories) -> None:
    async with world.clone.reading() as clone:
        first = await clone.commit_at("refs/remotes/origin/main")
        process = of(clone)._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()

        assert await clone.commit_at("refs/remotes/origin/main") == first
        assert await clone.commit_at("refs/remotes/origin/main") == first


async def test_distances_are_those_that_git_counts(world: GitRepositories) -> None:
    base = git(world.clone.path, "rev-parse", "origin/main")
    world.someone_pushes("line", {"a": "1"}, start="origin/main")
    line = world.someone_pushes("line", {"a": "2"})
    side = world.someone_pushes("side", {"b": "1"}, start="origin/main")
    git(world.clone.path, "fetch", "-q", "origin")
    async with world.clone.reading() as fast:
        for clone in (world.clone, fast):
            assert await clone.ahead_behind(line, base) == (2, 0)
            assert await clone.ahead_behind(base, line) == (0, 2)
            assert await clone.ahead_behind(line, side) == (2, 1)
            assert await clone.ahead_behind(line, line) == (0, 0)
            answers = [await clone.is_ancestor(*pair) for pair in ((base, line), (line, base), (line, side))]
            assert answers == [True, False, False]
