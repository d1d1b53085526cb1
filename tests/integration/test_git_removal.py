"""Removal: unique work is rescued or kept, then the worktree is removed completely, even after an interruption."""

import asyncio
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bot.model import DetachedHead, HeadBranch
from bot.sandbox import trash
from bot.tree import NotRemoved, Removed, RescueLabel
from bot.tree.clone.checkout import Seen, all_entries, inspect
from bot.tree.create import Created
from tests.support.damage import nested_repository
from tests.support.failpoints import KilledError
from tests.support.git_repositories import GitRepositories, git
from tests.support.patience import until_true

BRANCH = "threadtree/issue-1"
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
LABEL = RescueLabel(7, BRANCH, (1,), NOON)
NOBODY = 65534


@pytest.fixture
async def world(tmp_path: Path) -> GitRepositories:
    return await GitRepositories.make(tmp_path, "bwrap").with_worktree()


async def removed(
    world: GitRepositories, label: RescueLabel = LABEL, merged: str | None = None, *, published: bool = True
) -> Removed:
    result = await tried(world, label, merged, published=published)
    assert isinstance(result, Removed), result
    assert not is_there(world.path)
    assert world.path not in [entry.path for entry in await all_entries(world.clone)]
    assert not list((world.clone.data_dir / "private").glob("issue-1-*"))
    return result


async def tried(
    world: GitRepositories, label: RescueLabel = LABEL, merged: str | None = None, *, published: bool = True
) -> Removed | NotRemoved:
    async with world.open() as tree:
        if published:
            await tree.fetch()
        return await tree.remove(label, base_branch="main", merged_head=merged, published=published)


def is_there(path: Path) -> bool:
    return os.path.lexists(path)


def rescued_files(world: GitRepositories, removal: Removed) -> dict[str, str]:
    """Return the contents of the rescue's commit."""
    assert removal.rescue is not None
    names = git(world.clone.path, "ls-tree", "-r", "-z", "--name-only", removal.rescue.sha).split("\0")
    return {name: git(world.clone.path, "show", f"{removal.rescue.sha}:{name}") for name in names if name}


def rescues(world: GitRepositories) -> list[str]:
    return git(world.clone.path, "for-each-ref", "--format=%(refname)", "refs/threadtree/rescue").split()


# The work


async def test_a_published_worktree_is_removed_with_its_branch(world: GitRepositories) -> None:
    world.agent_commits({"line\nbreak": "1"})
    await world.publish()

    result = await removed(world)

    assert (result.rescue, result.kept, result.branch_deleted) == (None, None, True)
    assert await world.clone.commit_at(f"refs/heads/{BRANCH}") is None
    assert all(trash.trash_folder(world.clone.data_dir) in place.parents for place in result.trashed)
    assert sum([await trash.delete(place) for place in result.trashed]) > 0
    assert list((world.clone.data_dir / "trash").iterdir()) == []


async def test_a_removed_worktree_can_be_created_again_at_the_same_path(world: GitRepositories) -> None:
    await removed(world)
    assert isinstance(await world.create(), Created)


async def test_uncommitted_and_unpushed_work_is_rescued_and_the_branch_is_deleted(world: GitRepositories) -> None:
    mine = world.agent_commits({"a": "1"})
    (world.path / "README.md").write_text("edited")
    (world.path / "new").write_text("new")

    result = await removed(world)

    assert rescued_files(world, result) == {"README.md": "edited", "a": "1", "new": "new"}
    assert result.rescue is not None
    assert (result.rescue.files, result.rescue.commits) == (2, 1)
    assert await world.clone.is_ancestor(mine, result.rescue.sha)
    assert result.branch_deleted


async def test_a_branch_that_is_neither_merged_nor_rescued_nor_a_copy_stays(world: GitRepositories) -> None:
    tip = world.agent_commits({"a": "1"})
    await world.publish()
    git(world.clone.path, "push", "-q", "origin", f"{tip}:refs/heads/other", f":refs/heads/{BRANCH}")

    result = await removed(world)

    assert (result.rescue, result.branch_deleted) == (None, False)
    assert await world.clone.commit_at(f"refs/heads/{BRANCH}") == tip


async def squashed(world: GitRepositories) -> None:
    world.agent_commits({"a": "1"})
    world.agent_commits({"b": "2"})
    await world.publish()
    world.someone_pushes("main", {"c": "3"})
    world.someone_pushes("main", {"a": "1", "b": "2"})


async def test_a_squashed_branch_counts_as_merged(world: GitRepositories) -> None:
    await squashed(world)
    git(world.remote, "update-ref", "refs/heads/other", BRANCH)
    git(world.remote, "update-ref", "-d", f"refs/heads/{BRANCH}")
    world.someone_pushes("main", {"d": "4"})
    assert (await removed(world)).branch_deleted


async def test_commits_merged_on_github_count_as_merged_and_later_ones_do_not(world: GitRepositories) -> None:
    merged = world.agent_commits({"a": "1"})
    later = world.agent_commits({"b": "1"})
    await world.publish()
    git(world.remote, "update-ref", "refs/heads/other", BRANCH)
    git(world.remote, "update-ref", "-d", f"refs/heads/{BRANCH}")
    assert not (await removed(world, merged=merged)).branch_deleted
    await world.recreate(BRANCH)
    assert (await removed(world, merged=later)).branch_deleted


async def test_without_a_repository_nothing_counts_as_published(world: GitRepositories) -> None:
    tip = world.agent_commits({"a": "1"})
    await world.publish()
    shutil.rmtree(world.remote)
    result = await removed(world, merged=tip, published=False)
    assert result.rescue is not None
    assert (result.rescue.files, result.rescue.commits) == (0, 2), "also the one that the branch began from"
    assert result.branch_deleted
    git(world.clone.path, "update-ref", "-d", f"refs/remotes/origin/{BRANCH}")
    git(world.clone.path, "-c", "gc.pruneExpire=now", "gc", "-q", "--prune=now")
    assert await world.clone.is_ancestor(tip, result.rescue.sha)


async def test_without_a_repository_the_commits_of_a_broken_worktree_are_rescued_too(world: GitRepositories) -> None:
    tip = world.agent_commits({"a": "1"})
    await world.publish()
    (world.path / ".git").unlink()
    result = await removed(world, published=False)
    assert result.kept is not None
    assert result.rescue is not None
    assert await world.clone.is_ancestor(tip, result.rescue.sha)


async def test_a_branch_of_another_worktree_stays(world: GitRepositories) -> None:
    other = world.path.with_name("other")
    git(world.clone.path, "worktree", "add", "-q", "-f", str(other), BRANCH)
    assert not (await removed(world)).branch_deleted
    assert isinstance(await inspect(world.clone, other), Seen)


async def test_a_pull_requests_branch_leaves_no_configuration_behind(world: GitRepositories) -> None:
    await removed(world)
    world.someone_pushes("feature", {"a": "1"}, start="origin/main")
    await world.created(HeadBranch("feature"))
    assert (await removed(world, replace(LABEL, branch="feature"))).branch_deleted
    assert "branch.feature" not in git(world.clone.path, "config", "--list")


async def test_a_forks_head_counts_as_published_and_a_commit_on_it_is_rescued(world: GitRepositories) -> None:
    tip = world.someone_pushes("fork", {"a": "1"}, start="origin/main")
    git(world.remote, "update-ref", "refs/pull/7/head", tip)
    git(world.remote, "update-ref", "-d", "refs/heads/fork")
    detached = replace(LABEL, branch=None)
    await removed(world)
    await world.created(DetachedHead(tip, "refs/pull/7/head"))
    assert (await removed(world, detached)).rescue is None
    await world.created(DetachedHead(tip, "refs/pull/7/head"))
    mine = world.agent_commits({"b": "1"})
    result = await removed(world, detached)
    assert result.rescue is not None
    assert await world.clone.is_ancestor(mine, result.rescue.sha)


async def test_another_branchs_stash_and_ignored_files_need_no_rescue(world: GitRepositories) -> None:
    world.someone_pushes("main", {".gitignore": "*.log\n"})
    other = await world.created(HeadBranch("main"), world.path.with_name("other"))
    assert other.branch == "main"
    (world.path.with_name("other") / "README.md").write_text("edited")
    world.agent("stash", "push", "-q", path=world.path.with_name("other"))
    world.agent("merge", "-q", "--ff-only", "origin/main")
    (world.path / "x.log").write_text("ignored")
    assert (await removed(world)).rescue is None
    assert isinstance(await inspect(world.clone, world.path.with_name("other")), Seen)


async def test_a_stash_is_rescued_once_and_not_with_each_worktree_of_the_branch(tmp_path: Path) -> None:
    world = await GitRepositories.make(
        tmp_path
    ).with_worktree()  # without a sandbox all worktrees of the clone share one list
    (world.path / "README.md").write_text("stashed")
    world.agent("stash", "push", "-q")
    stashed = git(world.clone.path, "rev-parse", "refs/stash")
    first = await removed(world)
    assert first.rescue is not None
    assert stashed in git(world.clone.path, "rev-parse", f"{first.rescue.sha}^@").split()

    await world.created()
    assert (await removed(world, replace(LABEL, at=NOON + timedelta(days=1)))).rescue is None
    await world.created()
    (world.path / "README.md").write_text("stashed as well")
    world.agent("stash", "push", "-q")
    again = git(world.clone.path, "rev-parse", "refs/stash")
    later = await removed(world, replace(LABEL, at=NOON + timedelta(days=2)))
    assert later.rescue is not None
    parents = git(world.clone.path, "rev-parse", f"{later.rescue.sha}^@").split()
    assert (again in parents, stashed in parents) == (True, False)
    assert git(world.clone.path, "reflog", "--format=%H", "refs/stash").split() == [again, stashed]

    git(world.clone.path, "update-ref", "-d", first.rescue.ref)
    await world.created()
    expired = await removed(world, replace(LABEL, at=NOON + timedelta(days=3)))
    assert expired.rescue is not None
    assert stashed in git(world.clone.path, "rev-parse", f"{expired.rescue.sha}^@").split()


# Unusual trees


def link_in_its_place(world: GitRepositories) -> None:
    shutil.rmtree(world.path)
    world.path.symlink_to(world.person)


@pytest.mark.parametrize("damage", [link_in_its_place, nested_repository])
async def test_a_worktree_that_no_commit_can_hold_is_kept_whole(
    world: GitRepositories, damage: Callable[[GitRepositories], None]
) -> None:
    damage(world)
    link = world.path.readlink() if world.path.is_symlink() else None
    before = contents(world.path)

    result = await removed(world)

    assert result.kept is not None
    assert contents(result.kept) == before
    assert (result.kept.readlink() if link else None) == link
    assert trash.kept_since(result.kept.name) == NOON
    assert result.trashed == ()
    assert (world.person / "README.md").exists()


async def test_gits_record_of_a_kept_directory_is_kept_beside_it(world: GitRepositories) -> None:
    mine = world.agent_commits({"a": "1"})
    nested_repository(world)
    result = await removed(world)
    assert result.kept is not None
    git_state = result.kept.with_name(f"{result.kept.name}.git")
    assert (git_state / "worktrees" / "issue-1" / "HEAD").read_text() == f"ref: refs/heads/{BRANCH}\n"
    assert (git_state / "private").is_dir()
    assert result.rescue is not None
    assert await world.clone.is_ancestor(mine, result.rescue.sha)


def contents(path: Path) -> dict[str, bytes | None]:
    if path.is_file():
        return {"": path.read_bytes()}
    return {
        str(file.relative_to(path)): file.read_bytes() if file.is_file() else None for file in sorted(path.rglob("*"))
    }


@pytest.mark.parametrize("directory", [".", "deep"])
async def test_a_directory_without_permissions_is_removed_and_its_work_kept(
    world: GitRepositories, directory: str
) -> None:
    (world.path / "deep").mkdir()
    (world.path / "deep" / "mine").write_text("mine")
    (world.path / directory).chmod(0)

    result = await removed(world)

    if result.kept is None:
        assert rescued_files(world, result)["deep/mine"] == "mine"
        assert sum([await trash.delete(place) for place in result.trashed]) > 0
        assert list((world.clone.data_dir / "trash").iterdir()) == []
    else:
        (result.kept / directory).chmod(0o700)
        assert (result.kept / "deep" / "mine").read_text() == "mine"


def as_ordinary_user(action: Callable[[Path], None]) -> None:
    """Run the function in a process without root's rights, in its own folder."""
    with tempfile.TemporaryDirectory() as folder:
        if os.geteuid() != 0:
            action(Path(folder))
            return
        os.chown(folder, NOBODY, NOBODY)
        # These import modules that the user may not be able to read.
        datetime.strptime("2026", "%Y")  # noqa: DTZ007
        importlib.import_module("concurrent.futures.thread")
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                action(Path(folder))
                os._exit(0)
            except BaseException:  # noqa: BLE001 -- the process must end here
                traceback.print_exc()
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("directory", [".", "deep"])
def test_an_ordinary_user_removes_a_directory_without_permissions(directory: str) -> None:
    async def remove_it(root: Path) -> None:
        world = GitRepositories.make(root)
        await world.created()
        (world.path / "deep").mkdir()
        (world.path / "deep" / "mine").write_text("mine")
        (world.path / directory).chmod(0)
        result = await removed(world)
        if directory == ".":
            assert rescued_files(world, result)["deep/mine"] == "mine"
            (result.trashed[0] / "deep").chmod(0)
            assert sum([await trash.delete(place) for place in result.trashed]) > 0
            assert list((world.clone.data_dir / "trash").iterdir()) == []
        else:
            assert result.kept is not None
            (result.kept / "deep").chmod(0o700)
            assert (result.kept / "deep" / "mine").read_text() == "mine"

    as_ordinary_user(lambda root: asyncio.run(remove_it(root)))


async def test_an_obstacle_leaves_everything_in_place(world: GitRepositories) -> None:
    (world.path / "mine").write_text("mine")
    before = contents(world.path)
    (world.clone.data_dir / "trash").write_text("a file where the trash should be")

    result = await tried(world)

    assert isinstance(result, NotRemoved)
    assert result.why
    assert contents(world.path) == before
    assert isinstance(await inspect(world.clone, world.path), Seen)


async def test_a_directory_whose_record_stays_is_put_back(
    world: GitRepositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = trash.move

    def busy(path: Path, place: Path) -> None:
        if path == world.clone.path / "worktrees" / "issue-1":
            raise OSError("device or resource busy")
        move(path, place)

    monkeypatch.setattr(trash, "move", busy)
    result = await tried(world)
    assert result == NotRemoved("it could not be examined or moved away: device or resource busy")
    assert isinstance(await inspect(world.clone, world.path), Seen)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
async def test_a_mount_inside_is_not_followed(world: GitRepositories, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("precious")
    inside = world.path / "with space"
    inside.mkdir()
    if subprocess.run(["mount", "--bind", precious, inside], check=False).returncode:  # noqa: ASYNC221
        pytest.skip("this machine forbids mounts")
    try:
        result = await tried(world)
        assert isinstance(result, NotRemoved)
        assert "is mounted there" in result.why
        assert await trash.delete(world.path) == 0
    finally:
        subprocess.run(["umount", inside], check=True)  # noqa: ASYNC221
    assert (precious / "file").read_text() == "precious"
    await removed(world)


# Interrupted and repeated


async def test_a_repeated_removal_ends_the_same_and_one_rescue_has_everything(
    world: GitRepositories, kill_at: Callable[[str], None]
) -> None:
    mine = world.agent_commits({"a": "1"})
    (world.path / "new").write_text("new")
    kill_at("trashed")
    with pytest.raises(KilledError):
        await tried(world)

    result = await removed(world)

    assert rescued_files(world, result) == {"README.md": "hello", "a": "1", "new": "new"}
    assert result.rescue is not None
    assert (result.rescue.files, result.rescue.commits) == (1, 1)
    assert rescues(world) == [result.rescue.ref]
    assert await world.clone.is_ancestor(mine, result.rescue.sha)
    assert await world.clone.commit_at(f"refs/heads/{BRANCH}") is None


async def test_a_directory_kept_before_the_interruption_is_still_reported(
    world: GitRepositories, kill_at: Callable[[str], None]
) -> None:
    nested_repository(world)
    before = contents(world.path)
    kill_at("entry-dropped")
    with pytest.raises(KilledError):
        await tried(world)

    result = await removed(world)

    assert result.kept is not None
    assert contents(result.kept) == before
    git_state = result.kept.with_name(f"{result.kept.name}.git")
    assert (git_state / "worktrees" / "issue-1" / "HEAD").exists()
    assert sorted(trash.kept_folder(world.clone.data_dir).iterdir()) == [result.kept, git_state]


async def test_work_added_between_two_attempts_is_rescued_too(
    world: GitRepositories, kill_at: Callable[[str], None]
) -> None:
    (world.path / "first").write_text("1")
    kill_at("rescued")
    with pytest.raises(KilledError):
        await tried(world)
    (world.path / "second").write_text("2")
    assert set(rescued_files(world, await removed(world))) == {"README.md", "first", "second"}
    assert len(rescues(world)) == 2


# Only when clean


async def test_a_purge_removes_a_clean_and_pushed_worktree(world: GitRepositories) -> None:
    world.agent_commits({"a": "1"})
    await world.publish()
    async with world.open() as tree:
        await tree.fetch()
        result = await tree.remove(LABEL, base_branch="main", only_clean=True)
    assert isinstance(result, Removed)
    assert (result.rescue, result.kept, result.branch_deleted) == (None, None, True)
    assert not is_there(world.path)


# The trash, and kept directories


async def test_bytes_without_permissions_are_deleted_too_and_counted(tmp_path: Path) -> None:
    top, outside = tmp_path / "tree", tmp_path / "outside"
    deep = top / "deep" / "deeper"
    deep.mkdir(parents=True)
    outside.mkdir()
    (outside / "precious").write_text("precious")
    (deep / "file").write_bytes(b"x" * 100_000)
    (deep / "link").symlink_to(outside)
    (top / "link").symlink_to(outside / "precious")
    size = trash.size_of(top)
    deep.chmod(0)
    (top / "deep").chmod(0o500)
    top.chmod(0)

    assert await trash.delete(top) == size >= 100_000

    assert not top.exists()
    assert (outside / "precious").read_text() == "precious"
    assert await trash.delete(top) == 0


def test_a_tree_of_any_depth_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    thread_ref = os.open(tmp_path / "top", os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("x" * 50, dir_fd=thread_ref)
        there = os.open("x" * 50, os.O_RDONLY, dir_fd=thread_ref)
        os.close(thread_ref)
        thread_ref = there
    os.close(thread_ref)
    asyncio.run(trash.delete(tmp_path / "top"))
    assert list(tmp_path.iterdir()) == []


def fill_trash(data_dir: Path) -> None:
    for number in range(300):
        folder = data_dir / "trash" / f"tree-{number % 3}" / f"{number % 7}" / f"{number}"
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"x" * 5000)


async def test_a_deletion_that_is_cancelled_ends_its_process_and_the_next_one_deletes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_trash(tmp_path)
    (tmp_path / "rm").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec /bin/sleep 60\n")
    (tmp_path / "rm").chmod(0o700)
    monkeypatch.setattr(trash, "_SEARCH_PATH", str(tmp_path))
    deleting = asyncio.create_task(trash.empty_trash(tmp_path))
    pid = tmp_path / "pid"
    await until_true(lambda: pid.is_file() and pid.read_text().endswith("\n"))
    deleting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deleting
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    monkeypatch.undo()
    assert await trash.empty_trash(tmp_path) >= 300 * 5000
    assert list((tmp_path / "trash").iterdir()) == []


def test_two_simultaneous_deletions_empty_the_trash(tmp_path: Path) -> None:
    fill_trash(tmp_path)
    emptiers = [subprocess.Popen([*EMPTY, str(tmp_path)], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for emptier in emptiers:
        assert int(emptier.communicate()[0].splitlines()[-1]) >= 0
    assert list((tmp_path / "trash").iterdir()) == []


EMPTY = [
    sys.executable,
    "-c",
    "import asyncio, sys; from pathlib import Path; from bot.sandbox.trash import empty_trash;"
    "print(asyncio.run(empty_trash(Path(sys.argv[1]))))",
]


def test_a_kept_directory_expires_by_the_time_in_its_name(tmp_path: Path) -> None:
    for name, at in (("old", NOON), ("young", NOON + timedelta(days=2))):
        (tmp_path / name).mkdir()
        place = trash.keep_whole(tmp_path, tmp_path / name, at)
        place.with_name(f"{place.name}.git").mkdir()
        assert trash.kept_since(place.name) == at
    (tmp_path / "kept" / "something else").mkdir()

    found = trash.kept_before(tmp_path, NOON + timedelta(days=1))
    assert [place.name.split(".")[0] for place in found] == ["old", "old"]


@pytest.mark.parametrize(
    "name", ["issue-1", "issue-1.20260501T120000.000000Z", "a.20261501T120000.000000Z." + "0" * 16]
)
def test_another_name_has_no_time(name: str) -> None:
    assert trash.kept_since(name) is None


def test_nothing_is_moved_over_something_else(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    with pytest.raises(FileExistsError):
        trash.move(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "b"
