"""A damaged clone is detected, kept with its worktrees' directories, and fetched again."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bot import refs
from bot.tree.clone import branch_history
from bot.tree.clone.checkout import Checkout
from bot.tree.clone.fetch import Updated, replace_if_damaged
from bot.tree.git.errors import GitError
from tests.support.git_repositories import BOT, LABEL, RESCUE, GitRepositories, git, lose_published

BRANCH = "threadtree/issue-1"


@pytest.fixture
def world(tmp_path: Path) -> GitRepositories:
    return GitRepositories.make(tmp_path, "bwrap")


async def with_work(world: GitRepositories) -> dict[str, str]:
    """Make a worktree with a commit, a rescue and an uncommitted edit; return the refs that must not be lost."""
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


async def brought_up_to_date(world: GitRepositories) -> Updated:
    async with world.open() as tree:
        return await tree.update(world.url)


async def replaced(world: GitRepositories) -> Path:
    """Update the clone; return where the damaged one is kept."""
    updated = await brought_up_to_date(world)
    assert not updated.no_access
    assert updated.replaced is not None
    return world.root / "data" / "kept" / updated.replaced


async def assert_whole(world: GitRepositories, own: dict[str, str]) -> None:
    for ref, commit in own.items():
        assert await world.clone.commit_at(ref) == commit
    assert await world.clone.commit_at("refs/remotes/origin/main") == world.remote_tip("main")
    assert await world.seen() == (own[refs.local(BRANCH)], BRANCH, 1)
    assert (world.path / "uncommitted").read_text() == "2"
    git(world.clone.path, "fsck", "--full")


async def assert_fetched_anew(world: GitRepositories) -> None:
    assert await world.clone.commit_at("refs/remotes/origin/main") == world.remote_tip("main")
    git(world.clone.path, "fsck", "--full")
    # It stays in place until its next turn has a claim.
    assert (world.path / "uncommitted").read_text() == "2"


async def assert_next_turn_loses_nothing(world: GitRepositories, own: dict[str, str]) -> None:
    """Check that the worktree is back at the same path, and that its own work is there."""
    async with world.open() as tree:
        found = await tree.look(BRANCH)
    # The sandbox's private folder has its commits and its index.
    assert isinstance(found, Checkout)
    assert (found.commit, found.branch, found.files) == (own[refs.local(BRANCH)], BRANCH, 1)
    assert (world.path / "uncommitted").read_text() == "2"


def half_a_config(clone: Path) -> None:
    (clone / "config").write_text("[core]\n\tbare = tr")


def no_config(clone: Path) -> None:
    (clone / "config").write_bytes(b"\0" * 50)


def empty_head(clone: Path) -> None:
    (clone / "HEAD").write_bytes(b"")


def packs(clone: Path) -> list[Path]:
    return sorted((clone / "published" / "pack").glob("*.pack"), key=lambda pack: pack.stat().st_size)


def garbled_history(clone: Path) -> None:
    """Return the pack that GitHub sent first, which is the largest."""
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
    "damage",
    [
        *(garbled_history, garbage_in_packed_refs, empty_remote_ref, ref_to_nothing, no_refs_folder),
        *(half_a_config, no_config, empty_head),
    ],
)
async def test_a_damaged_clone_is_kept_and_fetched_again(
    world: GitRepositories, damage: Callable[[Path], None]
) -> None:
    own = await with_work(world)
    damage(world.clone.path)
    before = contents(world.clone.path)
    kept = await replaced(world)
    assert kept.name.startswith("hello.git.")
    left = contents(kept)
    assert {name: left.get(name) for name in before} == before
    await assert_fetched_anew(world)
    assert await brought_up_to_date(world) == Updated(None)
    await assert_next_turn_loses_nothing(world, own)


def contents(clone: Path) -> dict[str, bytes]:
    """Return all files that git does not write again by itself, by their names in the clone."""
    files = (path for path in clone.rglob("*") if path.is_file() and path.parent != clone)
    return {
        str(path.relative_to(clone)): path.read_bytes() for path in files if path.parent.name not in ("origin", "held")
    }


async def test_damage_that_a_fetch_does_not_notice_is_found_by_a_check(world: GitRepositories) -> None:
    own = await with_work(world)
    await world.update()
    lose_published(world.clone.path, git(world.remote, "rev-parse", "main:README.md"))
    assert await brought_up_to_date(world) == Updated(None)
    async with world.open() as tree:
        assert await replace_if_damaged(tree) is not None
        assert await replace_if_damaged(tree) is None
    await assert_fetched_anew(world)
    await assert_next_turn_loses_nothing(world, own)


async def test_unpushed_commits_and_rescues_can_be_fetched_from_the_damaged_clone(world: GitRepositories) -> None:
    own = await with_work(world)
    ref_to_nothing(world.clone.path)
    kept = await replaced(world)
    git(world.clone.path, "fetch", "-q", str(kept), *(f"{ref}:refs/found/{commit}" for ref, commit in own.items()))
    for commit in own.values():
        assert await world.clone.commit_at(commit) == commit


async def test_a_damaged_clone_stays_unchanged_while_the_remote_is_unreachable(world: GitRepositories) -> None:
    own = await with_work(world)
    ref_to_nothing(world.clone.path)
    away = world.remote.rename(world.root / "away.git")
    assert await brought_up_to_date(world) == Updated(no_access=True)
    assert not (world.root / "data" / "kept").exists()
    away.rename(world.remote)
    await replaced(world)
    await assert_fetched_anew(world)
    await assert_next_turn_loses_nothing(world, own)


LOCKS = ["refs/remotes/origin/main.lock", "packed-refs.lock", "shallow.lock", "config.lock", "HEAD.lock"]


@pytest.mark.parametrize("lock", LOCKS)
async def test_locks_of_a_killed_git_block_no_one(world: GitRepositories, lock: str) -> None:
    own = await with_work(world)
    file = world.clone.path / lock
    file.touch()
    os.utime(file, (0, 0))
    git(world.remote, "update-ref", "refs/heads/soon-gone", "main")
    moved = world.remote.rename(world.root / "moved.git")
    async with world.open() as tree:
        await tree.update(moved.as_uri())
    moved.rename(world.remote)
    await world.update()
    await assert_whole(world, own)


async def test_who_takes_the_clone_finds_no_lock_of_a_killed_git(world: GitRepositories) -> None:
    """Not only a fetch: also what notes a push, and what moves a branch."""
    await with_work(world)
    branch = "threadtree/issue-1"
    places = [world.clone.path / name for name in (*LOCKS, f"refs/heads/{branch}.lock")]
    for number, place in enumerate(places):
        place.touch() if number % 2 else (place / "inside").mkdir(parents=True)
        os.utime(place, (0, 0))
    async with world.open() as tree:
        tip = await world.clone.commit_at("refs/remotes/origin/main")
        await branch_history.record_pushed(tree, branch, tip)
        await world.clone.run("update-ref", f"refs/heads/{branch}", tip or "")
        await world.clone.run("pack-refs", "--all")
        world.agent("switch", "-q", "-c", "elsewhere")
        (world.clone.path / "worktrees" / "issue-1" / "HEAD.lock").touch()
        assert await tree.return_to_branch(branch, LABEL) is None
    assert not any(map(os.path.lexists, places))


async def test_without_a_sandbox_a_fresh_lock_belongs_to_another_process(tmp_path: Path) -> None:
    world = GitRepositories.make(tmp_path)
    await with_work(world)
    lock = world.clone.path / "refs" / "remotes" / "origin" / "main.lock"
    lock.touch()
    with pytest.raises(GitError):
        await world.update()
    assert lock.exists()


async def test_a_killed_fetch_is_repeated_and_leaves_nothing_behind(tmp_path: Path) -> None:
    world = GitRepositories.make(tmp_path, "bwrap")
    world.someone_pushes("main", {"large": os.urandom(3_000_000).hex()})
    async with world.open() as tree:
        await tree.update(world.url)
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
