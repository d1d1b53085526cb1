"""Whatever became of a worktree, no work in it is lost when it is removed, made again or reset.

Each kind of work and of damage stands here once. Work is found by the names that git gives to content.
"""

import hashlib
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bot.model import IssueBranch
from bot.tree import Missing, NotRemoved, Removed
from bot.tree.clone.checkout import all_entries
from bot.tree.reset import WasReset
from tests.support.git_repositories import LABEL, RESCUE, GitRepositories, entry_of, git

BRANCH = "threadtree/issue-1"
State = Callable[[GitRepositories], None]
End = Callable[[GitRepositories], Awaitable[None]]


@pytest.fixture
async def world(tmp_path: Path) -> GitRepositories:
    world = GitRepositories.make(tmp_path, "bwrap")
    await world.created()
    return world


def admin(world: GitRepositories) -> Path:
    return world.clone.path / "worktrees" / "issue-1"


# What an agent leaves


def edit(world: GitRepositories) -> None:
    (world.path / "README.md").write_text("edited")


def untracked_file(world: GitRepositories) -> None:
    (world.path / "line\nbreak").write_text("untracked")


def unpushed_commit(world: GitRepositories) -> None:
    world.agent_commits({"a": "1"})


def unpushed_commit_beside_the_branch(world: GitRepositories) -> None:
    world.agent("checkout", "-q", "--detach")
    world.agent_commits({"a": "1"})


def unpushed_branch_under_a_published_head(world: GitRepositories) -> None:
    world.agent_commits({"a": "1"})
    world.agent("checkout", "-q", "--detach", "origin/main")


def hidden_edit(world: GitRepositories) -> None:
    world.agent("update-index", "--skip-worktree", "README.md")
    edit(world)


def unseen_edit(world: GitRepositories) -> None:
    world.agent("update-index", "--assume-unchanged", "README.md")
    edit(world)


def stash(world: GitRepositories) -> None:
    edit(world)
    world.agent("stash", "push", "-q")


def stash_with_a_message(world: GitRepositories) -> None:
    edit(world)
    world.agent("stash", "push", "-q", "-m", "for later")


def bisect(world: GitRepositories) -> None:
    world.agent("bisect", "start")


def submodules(world: GitRepositories) -> None:
    (world.state / "modules").mkdir(exist_ok=True)


def nested_repository(world: GitRepositories) -> None:
    git(world.path, "init", "-q", "nested")
    (world.path / "nested" / "mine").write_text("mine")


WORK: list[State] = [
    edit,
    untracked_file,
    unpushed_commit,
    unpushed_commit_beside_the_branch,
    unpushed_branch_under_a_published_head,
    hidden_edit,
    unseen_edit,
    stash,
    stash_with_a_message,
    bisect,
    submodules,
    nested_repository,
]


# What becomes of the directory, of git's record of it, and of the clone


def deleted(world: GitRepositories) -> None:
    shutil.rmtree(world.path)


def emptied(world: GitRepositories) -> None:
    deleted(world)
    world.path.mkdir()


def a_file_instead(world: GitRepositories) -> None:
    deleted(world)
    world.path.write_text("somebody's notes")


def a_link_instead(world: GitRepositories) -> None:
    world.path.rename(world.root / "elsewhere")
    world.path.symlink_to(world.root / "elsewhere")


def a_stranger_instead(world: GitRepositories) -> None:
    emptied(world)
    (world.path / "theirs").write_text("theirs")


def git_file_gone(world: GitRepositories) -> None:
    (world.path / ".git").unlink()


def git_file_elsewhere(world: GitRepositories) -> None:
    (world.path / ".git").write_text(f"gitdir: {world.person}/.git\n")


def git_folder_instead(world: GitRepositories) -> None:
    git_file_gone(world)
    git(world.path, "init", "-q")


def without_permissions(world: GitRepositories) -> None:
    world.path.chmod(0o500)


def broken_index(world: GitRepositories) -> None:
    (world.state / "index").write_text("not an index")


def locked_by_somebody(world: GitRepositories) -> None:
    (admin(world) / "locked").write_text("mine")


def lock_that_cannot_be_read(world: GitRepositories) -> None:
    (admin(world) / "locked").unlink()
    (admin(world) / "locked").mkdir()


def half_made(world: GitRepositories) -> None:
    (admin(world) / "locked").write_text("initializing")
    (world.path / "README.md").unlink()


def half_registered(world: GitRepositories) -> None:
    half_made(world)
    (admin(world) / "gitdir").unlink()
    deleted(world)


def record_without_pointer(world: GitRepositories) -> None:
    (admin(world) / "gitdir").unlink()


def record_that_is_no_text(world: GitRepositories) -> None:
    (admin(world) / "HEAD").write_bytes(b"\xff\xfe")


def record_without_head(world: GitRepositories) -> None:
    (admin(world) / "HEAD").unlink()


def record_gone(world: GitRepositories) -> None:
    shutil.rmtree(world.clone.path / "worktrees")


def nothing_at_all(world: GitRepositories) -> None:
    deleted(world)
    record_gone(world)


def clone_gone(world: GitRepositories) -> None:
    shutil.rmtree(world.clone.path)


def clone_and_directory_gone(world: GitRepositories) -> None:
    clone_gone(world)
    deleted(world)


DAMAGE: list[State] = [
    deleted,
    emptied,
    a_file_instead,
    a_link_instead,
    a_stranger_instead,
    git_file_gone,
    git_file_elsewhere,
    git_folder_instead,
    without_permissions,
    broken_index,
    locked_by_somebody,
    lock_that_cannot_be_read,
    half_made,
    half_registered,
    record_without_pointer,
    record_that_is_no_text,
    record_without_head,
    record_gone,
    nothing_at_all,
    clone_gone,
]


# What is done


def files_in(*folders: Path) -> set[str]:
    """Return git's names for the content of the files in these folders, without those of git itself."""
    files = (file for folder in folders if not folder.is_symlink() for file in (folder, *folder.rglob("*")))
    contents = [file.read_bytes() for file in files if file.is_file() and ".git" not in file.parts]
    return {hashlib.sha1(b"blob %d\0" % len(one) + one).hexdigest() for one in contents}  # noqa: S324 - git's names


def found(world: GitRepositories) -> set[str]:
    """Return git's names for all that is in the worktree, in directories that were kept, and on refs of the clone."""
    listed = git(world.clone.path, "rev-list", "--objects", "--all") if world.clone.path.exists() else ""
    kept = [place for place in (world.clone.data_dir / "kept").glob("*") if not place.name.endswith(".git")]
    return {line.split(" ")[0] for line in listed.splitlines()} | files_in(world.path, *kept)


async def removed(world: GitRepositories) -> None:
    async with world.open() as tree:
        result = await tree.remove(LABEL, base_branch="main")
    assert isinstance(result, Removed), result
    assert not os.path.lexists(world.path)  # noqa: ASYNC240
    assert not list((world.clone.data_dir / "private").glob("issue-1-*"))
    if world.clone.path.exists():
        assert world.path not in [entry.path for entry in await all_entries(world.clone)]
        assert not list(world.clone.path.glob("worktrees/*"))


async def made_again(world: GitRepositories) -> None:
    """Do what a turn does before it starts."""
    async with world.open() as tree:
        await tree.update(world.url)
        if isinstance(await tree.look(BRANCH), Missing):
            await tree.make_again(BRANCH, None, RESCUE, IssueBranch(1))
    assert not isinstance(await world.seen(), Missing)
    assert await entry_of(world.clone, world.path) is not None


async def was_reset(world: GitRepositories) -> None:
    async with world.open() as tree:
        await tree.update(world.url)
        result = await tree.reset(IssueBranch(1), LABEL)
    assert isinstance(result, WasReset), result
    assert await world.seen() == (result.after, result.branch, 0)
    assert world.agent("status", "--porcelain", "--ignored=matching") == ""


@pytest.mark.parametrize("end", [removed, was_reset])
@pytest.mark.parametrize("work", WORK)
async def test_all_work_is_somewhere_afterwards(world: GitRepositories, work: State, end: End) -> None:
    work(world)
    commits = world.agent("for-each-ref", "--format=%(objectname)", "refs/heads", "refs/stash").split()
    before = {*files_in(world.path), *commits, world.agent("rev-parse", "HEAD")}
    await end(world)
    assert before <= found(world)


IN_PLACE = (
    without_permissions,
    locked_by_somebody,
    record_that_is_no_text,
    record_without_head,
    record_gone,
    clone_gone,
)
"""A turn goes on in such a worktree as it is."""
EMPTY = (deleted, emptied, a_link_instead)
"""Nothing is there to be kept."""
CASES = [(damage, end) for damage in DAMAGE for end in (removed, made_again, was_reset)]
CASES.remove((lock_that_cannot_be_read, made_again))  # an operator's own doing, which the turn tells


@pytest.mark.parametrize(("damage", "end"), [*CASES, (clone_and_directory_gone, made_again)])
async def test_no_damage_costs_more_than_it_took(world: GitRepositories, damage: State, end: End) -> None:
    mine = world.agent_commits({"mine": "1"})
    if damage is not clone_and_directory_gone:
        await world.bring_home()
    (world.path / "untracked").write_text("2")
    damage(world)
    before = files_in(world.path) if damage is not half_made else set()  # nobody has worked there yet
    await end(world)
    assert before <= found(world)
    if end is made_again:
        assert world.agent("rev-parse", "HEAD") == mine
        assert (world.path / "untracked").exists() is (damage in IN_PLACE)
        assert damage not in EMPTY or not (world.clone.data_dir / "kept").exists()
    if damage is clone_gone and end is not made_again:
        assert list(world.clone.data_dir.glob("kept/issue-1.*.git/private")), "it has the commits"
    else:
        assert mine in found(world)


@pytest.mark.parametrize("state", [*WORK, git_file_gone, half_made, broken_index])
async def test_a_purge_keeps_a_worktree_that_needs_a_rescue(world: GitRepositories, state: State) -> None:
    await world.seen()
    state(world)
    before = files_in(world.path)
    async with world.open() as tree:
        kept = await tree.remove(LABEL, base_branch="main", only_clean=True)
    assert isinstance(kept, NotRemoved)
    assert kept.why
    assert files_in(world.path) == before
    assert world.path in [entry.path for entry in await all_entries(world.clone)]
    assert not (world.clone.data_dir / "trash").exists()
