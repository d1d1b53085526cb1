"""A checkout that was cut off is put back, and nothing that git did not write is lost."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bot.tree.clone.admin import admin_directory
from bot.tree.clone.checkout import Checkout
from bot.tree.git.errors import GitError
from bot.tree.rescue.message import RescueLabel
from tests.support.git_repositories import GitRepositories, git

BRANCH = "threadtree/issue-1"
BEFORE = {"changed": "one\n", "gone": "gone\n", "cut": "old\n", "file": "file\n", "folder/a": "a\n", "same": "same\n"}
AFTER = {"changed": "two\n", "new/n": "new\n", "cut": "long and new\n", "file/f": "f\n", "folder": "folder\n"}
IGNORED = {".gitignore": "*.ign\n"}


@pytest.fixture
async def world(tmp_path: Path) -> GitRepositories:
    """Return a worktree at a commit with the files BEFORE; the branch `next` has AFTER, without `gone`."""
    world = GitRepositories.make(tmp_path, "bwrap", {**BEFORE, **IGNORED})
    await world.created()
    for name in ("gone", "file", "folder/a"):
        (world.person / name).unlink()
    (world.person / "folder").rmdir()
    world.someone_pushes("next", AFTER)
    await world.update()
    return world


def tip(world: GitRepositories) -> str:
    return git(world.clone.path, "rev-parse", "refs/remotes/origin/next")


def marked(world: GitRepositories) -> None:
    """Mark the worktree as `check_out` does before it starts git, with the index lock of a git that was killed."""
    admin = admin_directory(world.clone.path, world.path)
    assert isinstance(admin, Path)
    head = git(world.clone.path, "rev-parse", f"refs/heads/{BRANCH}")
    (admin / "threadtree-checkout").write_text(f"{head} {tip(world)}\n")
    (world.state / "index.lock").touch()


def files_of(world: GitRepositories) -> dict[str, str]:
    return {
        str(file.relative_to(world.path)): file.read_text()
        for file in world.path.rglob("*")
        if file.is_file() and file.name != ".git"
    }


def begun(path: Path) -> None:
    """Some files are written, one of them in part, and some are deleted."""
    (path / "changed").unlink()
    (path / "gone").unlink()
    (path / "cut").write_text("long a")
    (path / "new").mkdir()
    (path / "new" / "n").write_text("")
    (path / "file").unlink()
    (path / "folder" / "a").unlink()
    (path / "folder").rmdir()
    (path / "folder").write_text("folder\n")


def all_written(path: Path) -> None:
    begun(path)
    for name, content in AFTER.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(content)


def index_written(path: Path) -> None:
    """The index is the next commit's, HEAD is not."""
    all_written(path)


@pytest.mark.parametrize("cut", [begun, all_written, index_written])
async def test_a_checkout_that_was_cut_off_is_put_back_and_done_again(
    world: GitRepositories, cut: Callable[[Path], None]
) -> None:
    head = world.agent("rev-parse", "HEAD")
    cut(world.path)
    if cut is index_written:
        world.agent("read-tree", tip(world))
    (world.path / "mine").write_text("mine\n")
    (world.path / "a.ign").write_text("ignored\n")
    marked(world)

    async with world.open() as tree:
        await tree.look(BRANCH)
        assert files_of(world) == {
            "README.md": "hello\n", **BEFORE, **IGNORED, "mine": "mine\n", "a.ign": "ignored\n"
        }  # fmt: skip
        assert await world.seen() == (head, BRANCH, 1)
        (world.path / "mine").unlink()
        assert await tree.check_out(BRANCH, tip(world))
        (world.path / "mine").write_text("mine\n")
        await tree.look(BRANCH)
        assert await world.seen() == (tip(world), BRANCH, 1), "it is not marked any more"


async def test_what_a_person_wrote_after_the_cut_stays(world: GitRepositories) -> None:
    begun(world.path)
    mine = {"changed": "mine\n", "new/n": "mine too\n", "folder": "and this\n", "file/x.ign": "ignored\n"}
    for name, content in mine.items():
        (world.path / name).parent.mkdir(exist_ok=True)
        (world.path / name).write_text(content)
    marked(world)

    async with world.open() as tree:
        await tree.look(BRANCH)

    left = files_of(world)
    assert {name: left[name] for name in mine} == mine
    assert (left["gone"], left["cut"]) == ("gone\n", "old\n")


async def test_a_git_that_fails_in_the_middle_leaves_the_mark(world: GitRepositories) -> None:
    async with world.open() as tree:
        await tree.checkout()
        (world.state / "index.lock").touch()
        with pytest.raises(GitError):
            await tree.check_out(BRANCH, tip(world))
        begun(world.path)
        await tree.look(BRANCH)
        found = await tree.look(BRANCH)
    assert isinstance(found, Checkout)
    assert found.files == 0


async def test_a_rescue_takes_no_part_of_a_cut_off_checkout_for_work(world: GitRepositories) -> None:
    begun(world.path)
    marked(world)
    label = RescueLabel(7, BRANCH, (1,), datetime(2026, 1, 2, tzinfo=UTC))
    async with world.open() as tree:
        assert await tree.save(label) == (None, None)
    assert files_of(world) == {"README.md": "hello\n", **BEFORE, **IGNORED}


async def test_without_a_mark_missing_files_are_deletions(world: GitRepositories) -> None:
    (world.path / "gone").unlink()
    async with world.open() as tree:
        await tree.look(BRANCH)
    assert not (world.path / "gone").exists()
