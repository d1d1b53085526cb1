"""A clone that was damaged: noticed, made again, and nothing of it lost that can be read."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bot import failpoints
from bot.clones.clone import Remade, clone_lock, ensure, fetch, remake_if_damaged
from bot.clones.entries import Valid, inspect
from bot.git import refs
from bot.git.runner import GitError
from tests.support.git_repositories import BOT, RESCUE, SANDBOXES, GitRepositories, git

BRANCH = "threadtree/issue-1"


@pytest.fixture(params=SANDBOXES)
def world(tmp_path: Path, request: pytest.FixtureRequest) -> GitRepositories:
    return GitRepositories.make(tmp_path, request.param)


async def with_work(world: GitRepositories) -> dict[str, str]:
    """A worktree with a commit, a rescue, and an edit that nobody committed; the refs that must not be lost."""
    world.someone_pushes("main", {f"file-{number}": str(number) for number in range(120)})
    await world.created()
    mine = world.agent_commits({"mine": "1"})
    await world.bring_home()
    tree = f"{mine}^{{tree}}"
    rescued = (
        await world.clone.git.on_clone(
            world.clone.path, "commit-tree", "-p", mine, "-m", "rescued", tree, environment=BOT.environment
        )
    ).text
    git(world.clone.path, "update-ref", RESCUE, rescued)
    (world.path / "uncommitted").write_text("2")
    world.someone_pushes("main", {"later": "1"})
    return {refs.local(BRANCH): mine, RESCUE: rescued}


async def brought_up_to_date(world: GitRepositories) -> Remade | None:
    async with clone_lock(world.clone) as lock:
        return await ensure(lock, world.url) or await fetch(lock)


async def assert_whole(world: GitRepositories, own: dict[str, str]) -> None:
    for ref, commit in own.items():
        assert await world.clone.commit_at(ref) == commit
    assert await world.clone.commit_at("refs/remotes/origin/main") == world.remote_tip("main")
    state = await inspect(world.clone, world.path)
    assert state == Valid(own[refs.local(BRANCH)], BRANCH, dirty=True)
    assert (world.path / "uncommitted").read_text() == "2"
    git(world.clone.path, "fsck", "--full")


def half_a_config(clone: Path) -> None:
    (clone / "config").write_text("[core]\n\tbare = tr")


def no_config(clone: Path) -> None:
    (clone / "config").write_bytes(b"\0" * 50)


def empty_head(clone: Path) -> None:
    (clone / "HEAD").write_bytes(b"")


@pytest.mark.parametrize("damage", [half_a_config, no_config, empty_head])
async def test_what_can_be_written_again_is(world: GitRepositories, damage: Callable[[Path], None]) -> None:
    own = await with_work(world)
    damage(world.clone.path)
    assert await brought_up_to_date(world) is None
    await assert_whole(world, own)


def packs(clone: Path) -> list[Path]:
    return sorted((clone / "objects" / "pack").glob("*.pack"), key=lambda pack: pack.stat().st_size)


def garbled_history(clone: Path) -> None:
    """The pack that GitHub sent first, which is the largest."""
    pack = packs(clone)[-1]
    pack.chmod(0o600)
    content = bytearray(pack.read_bytes())
    content[200:-20:37] = bytes(len(content[200:-20:37]))
    pack.write_bytes(content)


def garbage_in_packed_refs(clone: Path) -> None:
    git(clone, "pack-refs", "--all")
    with (clone / "packed-refs").open("a") as file:
        file.write("garbage\n")


def empty_remote_ref(clone: Path) -> None:
    (clone / "refs" / "remotes" / "origin" / "main").write_bytes(b"")


def ref_to_nothing(clone: Path) -> None:
    (clone / "refs" / "heads" / "nothing").write_text(f"{'01' * 20}\n")


def no_refs_folder(clone: Path) -> None:
    git(clone, "pack-refs", "--all")
    shutil.rmtree(clone / "refs")


@pytest.mark.parametrize(
    "damage", [garbled_history, garbage_in_packed_refs, empty_remote_ref, ref_to_nothing, no_refs_folder]
)
async def test_a_damaged_clone_is_made_again_with_all_that_can_be_read(
    world: GitRepositories, damage: Callable[[Path], None]
) -> None:
    own = await with_work(world)
    damage(world.clone.path)
    remade = await brought_up_to_date(world)
    assert remade is not None
    assert (world.root / "data" / "kept" / remade.kept / "objects").is_dir()
    assert remade.lost == (("refs/heads/nothing",) if damage is ref_to_nothing else ())
    await assert_whole(world, own)
    assert await brought_up_to_date(world) is None


async def test_damage_that_a_fetch_does_not_see_is_found_when_looked_for(world: GitRepositories) -> None:
    own = await with_work(world)
    await world.update()
    history = packs(world.clone.path)[-1]
    for file in history.parent.glob(f"{history.stem}.*"):
        file.unlink()
    assert await brought_up_to_date(world) is None
    async with clone_lock(world.clone) as lock:
        assert await remake_if_damaged(lock) is not None
        assert await remake_if_damaged(lock) is None
    await assert_whole(world, own)


async def test_a_branch_that_cannot_be_read_is_named_and_costs_no_other(world: GitRepositories) -> None:
    own = await with_work(world)
    lost = own.pop(RESCUE)
    (world.clone.path / "objects" / lost[:2] / lost[2:]).unlink()
    remade = await brought_up_to_date(world)
    assert remade is not None
    assert remade.lost == (RESCUE,)
    await assert_whole(world, own)


async def test_while_the_remote_is_away_a_damaged_clone_stays_as_it_is(world: GitRepositories) -> None:
    own = await with_work(world)
    ref_to_nothing(world.clone.path)
    away = world.remote.rename(world.root / "away.git")
    with pytest.raises(GitError):
        await brought_up_to_date(world)
    assert not (world.root / "data" / "kept").exists()
    away.rename(world.remote)
    assert await brought_up_to_date(world) is not None
    await assert_whole(world, own)


@pytest.mark.parametrize("place", ["clone-remade", "clone-set-aside"])
async def test_making_it_again_can_be_cut_off_anywhere(
    world: GitRepositories, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = await with_work(world)
    ref_to_nothing(world.clone.path)

    def cut_off(reached: str) -> None:
        if reached == place:
            raise asyncio.CancelledError

    monkeypatch.setattr(failpoints, "listener", cut_off)
    with pytest.raises(asyncio.CancelledError):
        await brought_up_to_date(world)
    monkeypatch.undo()
    await brought_up_to_date(world)
    await assert_whole(world, own)
    assert sorted(child.name for child in world.clone.path.parent.iterdir()) == ["hello.git", "hello.git.lock"]


LOCKS = ["refs/remotes/origin/main.lock", "packed-refs.lock", "shallow.lock", "config.lock", "HEAD.lock"]


@pytest.mark.parametrize("lock", LOCKS)
async def test_locks_of_a_killed_git_stop_nobody(world: GitRepositories, lock: str) -> None:
    own = await with_work(world)
    file = world.clone.path / lock
    file.touch()
    os.utime(file, (0, 0))
    git(world.remote, "update-ref", "refs/heads/soon-gone", "main")
    moved = world.remote.rename(world.root / "moved.git")
    async with clone_lock(world.clone) as held:
        await ensure(held, moved.as_uri())
        await fetch(held)
    moved.rename(world.remote)
    await world.update()
    await assert_whole(world, own)


async def test_without_a_cage_a_fresh_lock_is_somebody_elses(tmp_path: Path) -> None:
    world = GitRepositories.make(tmp_path)
    await with_work(world)
    lock = world.clone.path / "refs" / "remotes" / "origin" / "main.lock"
    lock.touch()
    with pytest.raises(GitError):
        await world.update()
    assert lock.exists()


async def test_a_fetch_killed_in_the_middle_is_done_again_and_leaves_nothing_behind(tmp_path: Path) -> None:
    world = GitRepositories.make(tmp_path, "bwrap")
    world.someone_pushes("main", {"large": os.urandom(3_000_000).hex()})
    async with clone_lock(world.clone) as lock:
        await ensure(lock, world.url)
    pack = world.clone.path / "objects" / "pack"
    fetching = await asyncio.create_subprocess_exec(
        "git", "fetch", "-q", "origin", cwd=world.clone.path, start_new_session=True
    )
    while not list(pack.glob("tmp_pack_*")) and fetching.returncode is None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    if fetching.returncode is None:
        os.killpg(fetching.pid, 9)
    await fetching.wait()
    (pack / "tmp_pack_interrupted").write_bytes(b"half")
    await world.update()
    assert await world.clone.commit_at("refs/remotes/origin/main") == world.remote_tip("main")
    assert not list(pack.glob("tmp_*"))
    git(world.clone.path, "fsck", "--full")
