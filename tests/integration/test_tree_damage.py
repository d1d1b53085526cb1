"""Whatever became of a worktree, no work in it is lost when it is removed, made again or reset.

Work is found by the names that git gives to content.
"""

import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bot.model import IssueBranch
from bot.tree import Missing, NotRemoved, Removed
from bot.tree.clone.checkout import all_entries
from bot.tree.reset import WasReset
from tests.support.damage import (
    DAMAGE,
    WORK,
    State,
    a_link_instead,
    broken_index,
    clone_and_directory_gone,
    clone_gone,
    deleted,
    edit,
    emptied,
    git_file_gone,
    half_made,
    half_registered,
    lock_that_cannot_be_read,
    locked_by_somebody,
    nested_repository,
    nothing_at_all,
    record_gone,
    record_that_is_no_text,
    record_without_head,
    record_without_pointer,
    stash,
    without_permissions,
)
from tests.support.git_repositories import LABEL, RESCUE, GitRepositories, entry_of, git

BRANCH = "threadtree/issue-1"
End = Callable[[GitRepositories], Awaitable[None]]


@pytest.fixture
async def world(tmp_path: Path) -> GitRepositories:
    return await GitRepositories.make(tmp_path, "bwrap").with_worktree()


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


ENDS = [(work, removed) for work in WORK] + [(work, was_reset) for work in (edit, stash, nested_repository)]
"""Both rescue in the same way."""


@pytest.mark.parametrize(("work", "end"), ENDS)
async def test_all_work_is_somewhere_afterwards_and_a_purge_keeps_it_in_place(
    world: GitRepositories, work: State, end: End
) -> None:
    await world.seen()
    work(world)
    if end is removed:
        await purge_keeps(world)
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
OFF_RECORD = (half_registered, record_without_pointer, record_gone, nothing_at_all)
"""The clone does not know the sandbox any more: its commits were imported at the end of its last turn."""
CASES = [(damage, end) for damage in DAMAGE for end in (removed, made_again, was_reset)]
CASES.remove((lock_that_cannot_be_read, made_again))  # an operator's own doing, which the turn tells


@pytest.mark.parametrize(("damage", "end"), [*CASES, (clone_and_directory_gone, made_again)])
async def test_no_damage_costs_more_than_it_took(world: GitRepositories, damage: State, end: End) -> None:
    mine = world.agent_commits({"mine": "1"})
    if damage in OFF_RECORD and (end is not made_again or damage in (half_registered, record_without_pointer)):
        await world.bring_home()
    (world.path / "untracked").write_text("2")
    damage(world)
    before = files_in(world.path) if damage is not half_made else set()  # nobody has worked there yet
    await end(world)
    assert before <= found(world)
    if damage not in (locked_by_somebody, lock_that_cannot_be_read) and end is made_again:
        entry = await entry_of(world.clone, world.path)
        assert entry is not None
        assert entry.lock_reason == "threadtree: in use"
    if end is made_again:
        assert world.agent("rev-parse", "HEAD") == mine
        assert (world.path / "untracked").exists() is (damage in IN_PLACE)
        assert damage not in EMPTY or not (world.clone.data_dir / "kept").exists()
    elif damage is clone_gone:
        assert list(world.clone.data_dir.glob("kept/issue-1.*.git/private")), "it has the commits"
    else:
        assert mine in found(world)


@pytest.mark.parametrize("state", [git_file_gone, half_made, broken_index])
async def test_a_purge_keeps_a_damaged_worktree(world: GitRepositories, state: State) -> None:
    await world.seen()
    state(world)
    await purge_keeps(world)


async def purge_keeps(world: GitRepositories) -> None:
    before = files_in(world.path)
    async with world.open() as tree:
        kept = await tree.remove(LABEL, base_branch="main", only_clean=True)
    assert isinstance(kept, NotRemoved)
    assert kept.why
    assert files_in(world.path) == before
    assert world.path in [entry.path for entry in await all_entries(world.clone)]
    assert not (world.clone.data_dir / "trash").exists()
