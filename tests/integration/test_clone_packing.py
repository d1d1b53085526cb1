"""A clone is packed, and what a worktree may use survives that and an operator's own `git gc`."""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bot.tree.clone import arriving
from bot.tree.clone.clone import clone_lock
from bot.tree.clone.fetch import fetch_ref
from bot.tree.clone.packing import LARGE_REPOSITORY_FILES, forget_fetched, pack, pack_new, pack_whole
from bot.tree.git.runner import Completed, Git
from bot.tree.rescue.message import RescueLabel, drop_rescue
from bot.tree.rescue.save import Rescued
from tests.support.failpoints import KilledError
from tests.support.git_repositories import GitRepositories, git

A_WEEK_AGO = time.time() - 8 * 86400


@pytest.fixture
def each(tmp_path: Path) -> GitRepositories:
    return GitRepositories.make(tmp_path, "bwrap")


def operator_collects_garbage(world: GitRepositories) -> None:
    git(world.clone.path, "gc", "-q", "--prune=now")


def packs(world: GitRepositories) -> set[str]:
    return {pack.name for pack in (world.clone.path / "published" / "pack").glob("*.pack")}


async def packed(world: GitRepositories) -> None:
    async with world.open() as tree:
        await pack(tree)


async def packed_whole(world: GitRepositories) -> bool:
    async with world.open() as tree:
        return await pack_whole(tree, "main", 0)


async def test_an_operators_garbage_collection_breaks_nothing_between_and_during_turns(
    each: GitRepositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    feature = each.someone_pushes("feature", {"feature.txt": "1"}, start="origin/main")
    gone = each.someone_pushes("gone", {"gone.txt": "1"}, start="origin/main")
    await each.created()
    # During a turn: the agent uses what GitHub has now.
    each.agent("branch", "-q", "--no-track", "mine", "origin/gone")
    (each.path / "README.md").write_text("stashed\n")
    each.agent("stash", "-q")
    each.agent("checkout", "-q", "--detach", "origin/feature")
    # Another thread's turn fetches that one branch was rewritten and the other deleted.
    git(each.person, "checkout", "-q", "main")
    git(each.person, "push", "-q", "--force", "origin", "main:feature", ":gone")
    await each.update()
    operator_collects_garbage(each)

    assert each.agent("rev-parse", "mine", "HEAD").split() == [gone, feature]
    assert "origin/main" in each.agent("branch", "-r")
    made = each.agent_commits({"new.txt": "work"})
    # Between two turns, and in the middle of an import.
    whole_run = Git.run

    async def run(self: Git, *args: str, **options: Any) -> Completed:
        if "update-ref" in args:
            operator_collects_garbage(each)
        return await whole_run(self, *args, **options)

    monkeypatch.setattr(Git, "run", run)
    await each.bring_home()
    operator_collects_garbage(each)
    await packed(each)

    assert await each.clone.commit_at(made) == made
    each.agent("fsck", "--connectivity-only", "--no-dangling")
    assert each.agent("show", "stash@{0}:README.md") == "stashed"
    assert not list((each.clone.path / "objects" / "pack").glob("*.keep"))


async def test_what_the_remote_deleted_stays_until_no_worktree_is_as_old(
    each: GitRepositories, kill_at: Callable[[str], None]
) -> None:
    each.someone_pushes("feature", {"feature.txt": "1"}, start="origin/main")
    gone = each.someone_pushes("gone", {"gone.txt": "1"}, start="origin/main")
    await each.created()
    each.agent("checkout", "-q", "--detach", "origin/gone")
    git(each.person, "push", "-q", "--force", "origin", "main:feature", ":gone")
    kill_at("clone-pruned")
    with pytest.raises(KilledError):
        await each.update()
    git(each.clone.path, "reflog", "expire", "--all")
    operator_collects_garbage(each)
    await packed(each)
    age(each)
    assert await packed_whole(each)
    await packed(each)
    age(each, packs=False)
    assert await packed_whole(each)

    each.agent("fsck", "--connectivity-only", "--no-dangling")
    each.agent("checkout", "-q", "--detach", "origin/main")
    await each.bring_home()
    git(each.clone.path, "reflog", "expire", "--expire=now", "--all")
    created = each.clone.path / "worktrees" / "issue-1" / "commondir"
    os.utime(created, (time.time() + 86400,) * 2)  # a younger worktree
    age(each, packs=False)
    assert await packed_whole(each)
    assert await each.clone.commit_at(gone) is None


async def test_a_sandbox_sees_the_remote_branches_after_the_clones_refs_are_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arriving, "_LOOSE_REFS", 20)
    world = GitRepositories.make(tmp_path, "bwrap")
    for number in range(25):
        git(world.person, "push", "-q", "origin", f"main:b{number}")
    await world.created()
    world.agent("branch", "mine")
    world.agent("pack-refs", "--all")
    locked = world.view().common / "packed-refs.lock"

    locked.touch()  # the agent's git is at work
    await packed(world)
    assert (world.clone.path / "refs" / "remotes" / "origin" / "b24").exists()

    locked.unlink()
    await packed(world)
    assert not (world.clone.path / "refs" / "remotes" / "origin" / "b24").exists()
    listed = world.agent("for-each-ref", "--format=%(refname)").split()
    assert {"refs/heads/mine", "refs/heads/threadtree/issue-1", "refs/remotes/origin/b24"} <= set(listed)
    git(world.person, "push", "-q", "origin", "main:later")
    await world.update()
    assert "origin/later" in world.agent("branch", "-r")


async def test_what_an_agent_puts_in_place_of_its_packed_refs_stops_no_other_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arriving, "_LOOSE_REFS", 20)
    world = GitRepositories.make(tmp_path, "bwrap")
    for number in range(25):
        git(world.person, "push", "-q", "origin", f"main:b{number}")
    await world.created()
    secret = tmp_path / "secret"
    secret.write_text("a secret\n")
    (world.view().common / "packed-refs").unlink(missing_ok=True)
    (world.view().common / "packed-refs").symlink_to(secret)

    await packed(world)

    assert secret.read_text() == "a secret\n"
    assert await world.clone.commit_at("refs/remotes/origin/b24") is not None


async def test_packs_and_loose_objects_become_few(each: GitRepositories) -> None:
    await each.created()
    for number in range(6):
        each.someone_pushes("main", {f"file-{number}": "x" * 1000})
        await each.update()
    (each.clone.path / "objects" / "pack" / "pack-1.keep").write_text("threadtree: imported\n")

    await packed(each)

    assert len(packs(each)) <= 1
    assert not list((each.clone.path / "objects" / "pack").glob("*.keep"))
    git(each.clone.path, "fsck", "--connectivity-only")


async def test_a_fetched_head_that_no_worktree_is_at_any_more_is_forgotten(each: GitRepositories) -> None:
    old = each.someone_pushes("fork", {"a": "1"}, start="origin/main")
    for number in (7, 8):
        git(each.remote, "update-ref", f"refs/pull/{number}/head", old)
    await each.created()
    async with each.open() as tree:
        for number in (7, 8):
            await fetch_ref(tree, f"refs/pull/{number}/head")
        await forget_fetched(tree, ["refs/pull/8/head"])
    assert await each.clone.commit_at("refs/threadtree/fetched/pull/7/head") is None
    assert await each.clone.commit_at("refs/threadtree/fetched/pull/8/head") == old


async def test_files_of_a_large_repository_lie_in_a_pack_of_their_own(tmp_path: Path) -> None:
    files = {f"d{number % 50}/f{number}": f"{number}\n" for number in range(LARGE_REPOSITORY_FILES)}
    world = GitRepositories.make(tmp_path, files=files)
    await world.created()
    [fetched] = packs(world)

    assert await packed_whole(world)
    assert not await packed_whole(world)

    [own] = packs(world) - {fetched}
    assert (world.clone.path / "published" / "pack" / own).with_suffix(".keep").exists()
    world.someone_pushes("main", {"more": "1"})
    await world.update()
    age(world, packs=False)
    assert await packed_whole(world)
    [_, new] = sorted(packs(world), key=lambda name: (world.clone.path / "published/pack" / name).stat().st_mtime)
    assert new not in (own, fetched)
    assert [keep.stem for keep in (world.clone.path / "published" / "pack").glob("*.keep")] == [Path(new).stem]
    git(world.clone.path, "fsck")


async def test_files_of_a_new_clone_are_packed_while_others_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"d{number % 50}/f{number}": f"{number}\n" for number in range(LARGE_REPOSITORY_FILES)}
    world, whole_run = GitRepositories.make(tmp_path, files=files), Git.run
    await world.created()
    [fetched] = packs(world)

    async def run(self: Git, *args: str, **options: Any) -> Completed:
        if "pack-objects" in args:
            async with clone_lock(world.clone):  # which clears what looks like a killed git's
                assert packs(world) == {fetched}
        done = await whole_run(self, *args, **options)
        if "pack-objects" in args:
            async with clone_lock(world.clone):
                assert packs(world) == {fetched}
        return done

    monkeypatch.setattr(Git, "run", run)
    assert not world.clone.is_packed
    await pack_new(world.clone, "main", 10**18)
    assert not world.clone.is_packed
    await pack_new(world.clone, "main", 0)

    [own] = packs(world) - {fetched}
    assert world.clone.is_packed
    assert not await packed_whole(world)
    assert (world.clone.path / "published" / "pack" / own).with_suffix(".keep").exists()
    assert len(git(world.clone.path, "verify-pack", "-v", f"published/pack/{own}").splitlines()) > len(files)
    git(world.clone.path, "fsck")


async def test_a_clone_is_not_packed_whole_where_the_disk_is_short(each: GitRepositories) -> None:
    await each.update()
    async with each.open() as tree:
        assert not await pack_whole(tree, "main", 10**18)


async def test_a_dropped_rescue_frees_its_bytes_and_a_kept_one_stays(each: GitRepositories) -> None:
    await each.created()
    await packed_whole(each)
    found: list[Rescued] = []
    for number in (1, 2):
        (each.path / "work.bin").write_bytes(os.urandom(50_000 * number))
        async with each.open() as tree:
            label = RescueLabel(number, "threadtree/issue-1", (1,), datetime.now(UTC))
            rescued, _ = await tree.save(label)
        assert rescued is not None
        found.append(rescued)
    dropped, kept = found
    async with each.open() as tree:
        await drop_rescue(tree, dropped.ref)
    await packed(each)
    age(each)

    assert await packed_whole(each)

    assert await each.clone.commit_at(dropped.sha) is None
    assert await each.clone.commit_at(kept.sha) == kept.sha
    git(each.clone.path, "fsck", "--connectivity-only")


def age(world: GitRepositories, *, packs: bool = True) -> None:
    """Make the last packing a week old, with `packs` all objects too."""
    stores = ("objects", "published") if packs else ()
    files = [file for store in stores for file in (world.clone.path / store).rglob("*")]
    for file in (*files, world.clone.path / "threadtree-packed"):
        if file.exists():
            os.utime(file, (A_WEEK_AGO, A_WEEK_AGO))
