"""Files under Git LFS in worktrees, their rescues, and what an agent can plant for the host."""

import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from bot.model import IssueBranch
from bot.tree.clone.checkout import require_checkout
from bot.tree.clone.clone import clone_lock
from bot.tree.clone.status import statuses
from bot.tree.lfs.objects import Provided, provide, staging
from bot.tree.lfs.pointers import Pointer, pointers_in
from bot.tree.rescue.restore import restore
from bot.tree.rescue.save import Rescued, save_rescue
from tests.support.git_repositories import LABEL, SANDBOXES, GitRepositories, git, lfs_pointer, require_git_lfs

CONTENT, CHANGED = b"\x89the picture\r\n", b"\x89another picture\r\n"


@pytest.fixture(params=SANDBOXES)
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> GitRepositories:
    """Return a worktree with two files under Git LFS whose objects GitHub gave."""
    require_git_lfs()
    sandbox: Literal["off", "bwrap"] = request.param
    world = GitRepositories.make(tmp_path, sandbox)
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
    async with clone_lock(world.clone) as lock:
        checkout = await require_checkout(lock, world.path)
        return await provide(checkout, checkout.head.commit or "")


async def changes(world: GitRepositories) -> list[str]:
    return [change.name for change in await (await world.looked_at()).changes()]


async def test_a_worktree_with_content_is_clean(world: GitRepositories) -> None:
    assert (world.path / "a.bin").read_bytes() == CONTENT
    assert await changes(world) == []
    os.utime(world.path / "a.bin")  # git reads it
    assert await changes(world) == []
    async with clone_lock(world.clone) as lock:
        assert await save_rescue(lock, world.path, LABEL) is None


async def test_a_rescue_has_what_was_changed_and_brings_it_back(world: GitRepositories) -> None:
    (world.path / "a.bin").write_bytes(CHANGED)
    async with clone_lock(world.clone) as lock:
        found = await save_rescue(lock, world.path, LABEL)
        assert isinstance(found, Rescued)
        assert found.files == 1
        assert git(world.clone.path, "cat-file", "-s", f"{found.sha}:a.bin") == str(len(CHANGED))
        assert git(world.clone.path, "show", f"{found.sha}:b.bin") == lfs_pointer(b"b").strip()
        checkout = await require_checkout(lock, world.path)
        await checkout.git("reset", "--quiet", "--hard")
        assert await provide(checkout, checkout.head.commit or "") == Provided()
        assert (world.path / "a.bin").read_bytes() == CONTENT
        await restore(lock, world.path, "threadtree/issue-1", found.sha, None, 1)
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
    async with clone_lock(world.clone) as lock:
        found = await save_rescue(lock, world.path, LABEL)
        assert isinstance(found, Rescued)
        again = await save_rescue(lock, world.path, LABEL)
        assert again == found
        if lost:
            return
        checkout = await require_checkout(lock, world.path)
        await checkout.git("reset", "--quiet", "--hard", before)
        shutil.rmtree(world.state / "lfs")
        await restore(lock, world.path, "threadtree/issue-1", found.sha, None, 1)
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
    async with (
        clone_lock(world.clone) as lock,
        staging(await require_checkout(lock, world.path), [("a", pointer)]) as (
            folder,
            missing,
        ),
    ):
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
    if world.clone.git.cage.isolates:
        await world.looked_at()
        async with clone_lock(world.clone) as lock:
            await require_checkout(lock, second)
    os.utime(world.path / "a.bin")
    shown = await statuses(world.clone, [world.path, second])
    assert [changed for _, changed in shown.values()] == ([0, 0] if world.clone.git.cage.isolates else [])
