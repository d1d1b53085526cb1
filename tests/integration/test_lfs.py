"""Files under Git LFS in worktrees, their rescues, and what an agent can plant for the host."""

import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bot.model import IssueBranch
from bot.tree.clone.status import statuses
from bot.tree.lfs.objects import Provided, provide, staging
from bot.tree.lfs.pointers import Pointer, pointers_in
from tests.support.git_repositories import LABEL, GitRepositories, git, lfs_pointer, require_git_lfs

CONTENT, CHANGED = b"\x89the picture\r\n", b"\x89another picture\r\n"


@pytest.fixture
async def world(tmp_path: Path) -> GitRepositories:
    """Return a worktree with two files under Git LFS whose objects GitHub gave."""
    require_git_lfs()
    world = GitRepositories.make(tmp_path, "bwrap")
    world = replace(world, clone=replace(world.clone, git=replace(world.clone.git, lfs=True)))
    world.someone_pushes(
        "main",
        {".gitattributes": "*.bin filter=lfs -text\n", "a.bin": lfs_pointer(CONTENT), "b.bin": lfs_pointer(b"b")},
    )
    await world.created()
    for content in (CONTENT, b"b"):
        place = world.clone.path / "lfs" / of(content).path
        place.parent.mkdir(parents=True)
        place.write_bytes(content)
    assert await provided(world) == Provided()
    return world


def of(content: bytes) -> Pointer:
    found = Pointer.parse("", lfs_pointer(content).encode())
    assert found is not None
    return found


async def provided(world: GitRepositories) -> Provided:
    async with world.open() as tree:
        checkout = await tree.checkout()
        return await provide(checkout, checkout.commit or "")


async def changes(world: GitRepositories) -> list[str]:
    return [change.name for change in await (await world.looked_at()).changes()]


async def test_a_worktree_with_content_is_clean(world: GitRepositories) -> None:
    assert (world.path / "a.bin").read_bytes() == CONTENT
    assert await changes(world) == []
    os.utime(world.path / "a.bin")  # git reads it
    assert await changes(world) == []
    async with world.open() as tree:
        assert await tree.save(LABEL) == (None, None)


async def test_a_rescue_has_what_was_changed_and_brings_it_back(world: GitRepositories) -> None:
    (world.path / "a.bin").write_bytes(CHANGED)
    async with world.open() as tree:
        found, _ = await tree.save(LABEL)
        assert found is not None
        assert found.files == 1
        assert git(world.clone.path, "cat-file", "-s", f"{found.sha}:a.bin") == str(len(CHANGED))
        assert git(world.clone.path, "show", f"{found.sha}:b.bin") == lfs_pointer(b"b").strip()
        checkout = await tree.checkout()
        await checkout.git("reset", "--quiet", "--hard")
        assert await provide(checkout, checkout.commit or "") == Provided()
        assert (world.path / "a.bin").read_bytes() == CONTENT
        await tree.restore("threadtree/issue-1", found.sha, None, 1)
    assert (world.path / "a.bin").read_bytes() == CHANGED
    assert await provided(world) == Provided()
    assert await changes(world) == ["a.bin"]
    assert (world.path / "b.bin").read_bytes() == b"b"


@pytest.mark.parametrize("lost", [False, True])
async def test_a_rescue_has_the_objects_of_all_unpublished_commits(world: GitRepositories, lost: bool) -> None:
    before = git(world.path, "rev-parse", "HEAD")
    for content in (CHANGED, b"newest"):
        place = world.state / "lfs" / of(content).path
        place.parent.mkdir(parents=True)
        place.write_bytes(content)
        world.agent_commits({"a.bin": lfs_pointer(content)})
    if lost:
        shutil.rmtree(world.path)
    async with world.open() as tree:
        found, _ = await tree.save(LABEL)
        assert found is not None
        again, _ = await tree.save(LABEL)
        assert again == found
        if lost:
            return
        checkout = await tree.checkout()
        await checkout.git("reset", "--quiet", "--hard", before)
        shutil.rmtree(world.state / "lfs")
        await tree.restore("threadtree/issue-1", found.sha, None, 1)
    for content in (CHANGED, b"newest"):
        assert (world.state / "lfs" / of(content).path).read_bytes() == content


@pytest.mark.parametrize("planted", ["other", "longer", "link", "folder", "nothing"])
async def test_an_object_that_is_not_what_its_name_says_is_not_taken(world: GitRepositories, planted: str) -> None:
    pointer = of(CHANGED)
    place = world.state / "lfs" / pointer.path
    place.parent.mkdir(parents=True, exist_ok=True)
    secret = world.root / "secret"
    secret.write_bytes(CHANGED)
    match planted:
        case "other":
            place.write_bytes(CHANGED[::-1])
        case "longer":
            place.write_bytes(CHANGED + b"!")
        case "link":
            place.symlink_to(secret)
        case "folder":
            place.mkdir()
        case _:
            pass
    async with world.open() as tree, staging(await tree.checkout(), [("a", pointer)]) as (folder, missing):
        assert missing == ("a",)
        assert not [file for file in folder.rglob("*") if file.is_file()]


async def test_a_pointer_is_read_only_where_attributes_say_so_and_is_never_a_path(world: GitRepositories) -> None:
    tricks = lfs_pointer(CONTENT).replace(hashlib.sha256(CONTENT).hexdigest(), "../" * 21 + "a")
    world.someone_pushes("main", {"c.bin": tricks, "d.txt": lfs_pointer(CONTENT), "e.bin": lfs_pointer(CONTENT) * 20})
    await world.update()
    assert set(await pointers_in(world.clone, "refs/remotes/origin/main")) == {"a.bin", "b.bin"}


async def test_a_list_of_worktrees_takes_content_for_unchanged(world: GitRepositories) -> None:
    second = world.path.with_name("issue-2")
    await world.created(IssueBranch(2), second)
    await world.looked_at()
    async with world.open() as tree:
        await tree.at(second).checkout()
    os.utime(world.path / "a.bin")
    shown = await statuses(world.clone, [world.path, second])
    assert [changed for _, changed in shown.values()] == [0, 0]
