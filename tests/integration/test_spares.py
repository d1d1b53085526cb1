"""Spares: checkouts kept ready for new conversations."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from bot import failpoints
from bot.clones.admin import recorded
from bot.clones.entries import Valid, inspect
from bot.clones.packing import LARGE_REPOSITORY_FILES
from bot.maintenance.clones import keep_all_spares
from bot.maintenance.repair import repair
from bot.model import DetachedHead, HeadBranch, IssueBranch, Start
from bot.worktrees import spares
from bot.worktrees.spares import drop_spares, keep_spares, spares_folder, spares_on_disk
from tests.support.git_repositories import SANDBOXES, GitRepositories, git
from tests.support.node import prepared_node
from tests.support.started import processes_started


class KilledError(Exception):
    """The process ended at a failpoint."""


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spares, "SETTLE_SECONDS", 0)


@pytest.fixture(params=SANDBOXES)
def each(tmp_path: Path, request: pytest.FixtureRequest) -> GitRepositories:
    files = {"dir/a": "1\n", "dir/b": "2\n", ".gitignore": "*.log\n"}
    return GitRepositories.make(tmp_path, request.param, files)


async def kept(world: GitRepositories, wanted: int = 1) -> list[Path]:
    await world.update()
    await keep_spares(world.clone, wanted, world.remote_tip("main"))
    return spares_on_disk(world.clone)


def inode(path: Path) -> int:
    return path.stat().st_ino


def kill_at(monkeypatch: pytest.MonkeyPatch, failpoint: str) -> None:
    def listener(name: str) -> None:
        if name == failpoint:
            raise KilledError(name)

    monkeypatch.setattr(failpoints, "listener", listener)


@pytest.mark.parametrize("kind", ["issue", "same branch again", "head", "detached"])
async def test_a_new_worktree_takes_over_a_spare(each: GitRepositories, kind: str) -> None:
    feature = each.someone_pushes("feature", {"dir/a": "other\n", "new/file": "3\n"}, start="origin/main")
    git(each.person, "checkout", "-q", "main")
    main = each.remote_tip("main")
    start: Start = IssueBranch(1)
    branch: str | None = "threadtree/issue-1"
    if kind == "same branch again":
        await each.update()
        git(each.clone.path, "branch", "-q", "--no-track", "threadtree/issue-1", main)
    elif kind == "head":
        start, branch = HeadBranch("feature"), "feature"
    elif kind == "detached":
        start, branch = DetachedHead(feature, "refs/heads/feature"), None
    [spare] = await kept(each)
    identity = inode(spare)

    made = await each.created(start)

    head = main if branch and branch != "feature" else feature
    assert (made.branch, made.tip) == (branch, head)
    assert await inspect(each.clone, each.path) == Valid(head, branch, files=0)
    assert inode(each.path) == identity
    assert spares_on_disk(each.clone) == []
    assert (each.path / "new" / "file").exists() == (head == feature)
    assert each.agent("status", "--porcelain", "--ignored", "--branch").split()[1].startswith(branch or "HEAD")
    commit = each.agent_commits({"new.txt": "work"})
    if branch is not None:
        await each.bring_home(branch)
        assert await each.clone.commit_at(f"refs/heads/{branch}") == commit


async def test_a_spare_has_no_branch_no_cage_and_follows_the_default_branch(each: GitRepositories) -> None:
    [spare] = await kept(each)
    identity = inode(spare)
    tip = each.someone_pushes("main", {"dir/a": "changed\n"})

    assert await kept(each) == [spare]

    assert inode(spare) == identity
    assert (spare / "dir" / "a").read_text() == "changed\n"
    assert git(spare, "rev-parse", "HEAD") == tip
    assert git(spare, "status", "--porcelain", "--branch") == "## HEAD (no branch)"
    assert git(each.clone.path, "for-each-ref", "refs/heads") == ""
    private = each.root / "data" / "private"
    assert not private.exists() or list(private.iterdir()) == []
    assert "locked" in git(each.clone.path, "worktree", "list", "--porcelain")


async def test_spares_that_are_not_wanted_go(each: GitRepositories) -> None:
    assert len(await kept(each, 2)) == 2
    [left] = await kept(each, 1)
    (spares_folder(each.clone) / "rubbish").mkdir()
    assert await kept(each, 1) == [left]
    assert await drop_spares(each.clone) > 0
    assert spares_on_disk(each.clone) == []
    assert list(each.clone.path.glob("worktrees/*")) == []
    assert list(each.clone.trash.iterdir()) == []


@pytest.mark.parametrize("name", ["new.txt", "ignored.log", "dir/a"])
async def test_a_spare_that_was_changed_is_not_used(each: GitRepositories, name: str) -> None:
    [spare] = await kept(each)
    identity = inode(spare)
    (spare / name).write_text("planted\n")

    made = await each.created()

    assert made.branch == "threadtree/issue-1"
    assert await inspect(each.clone, each.path) == Valid(made.tip, made.branch, files=0)
    assert each.agent("status", "--porcelain", "--ignored") == ""
    assert inode(each.path) != identity


@pytest.mark.parametrize("failpoint", ["spare-registered", "spare-taken", "spare-moved", "worktree-registered"])
async def test_a_spare_whose_process_is_killed_is_made_anew(
    each: GitRepositories, monkeypatch: pytest.MonkeyPatch, failpoint: str
) -> None:
    if failpoint != "spare-registered":
        await kept(each)
    kill_at(monkeypatch, failpoint)
    with pytest.raises(KilledError):
        await (kept(each) if failpoint == "spare-registered" else each.created())
    monkeypatch.undo()

    made = await each.created()
    [spare] = await kept(each)

    assert await inspect(each.clone, each.path) == Valid(made.tip, made.branch, files=0)
    assert git(spare, "status", "--porcelain", "--ignored") == ""
    pointers = {Path(recorded(admin / "gitdir")).parent for admin in each.clone.path.glob("worktrees/*")}
    assert pointers == {each.path, spare}
    assert not (each.root / "data" / "kept").exists()


async def test_only_one_process_makes_spares(each: GitRepositories, monkeypatch: pytest.MonkeyPatch) -> None:
    await each.update()
    others: list[list[Path]] = []

    def listener(name: str) -> None:
        if name == "spare-registered":
            others.append(spares_on_disk(each.clone))

    monkeypatch.setattr(failpoints, "listener", listener)

    await asyncio.gather(*(keep_spares(each.clone, 1, each.remote_tip("main")) for _ in range(3)))
    assert len(spares_on_disk(each.clone)) == len(others[0]) == 1


async def test_busy_large_repositories_have_spares(tmp_path: Path, database_url: str) -> None:
    async with prepared_node(tmp_path, database_url) as node:
        files = {f"d/f{number}": "" for number in range(LARGE_REPOSITORY_FILES)}
        await node.add(1, days=1)

        counted: dict[Path, tuple[str, int]] = {}

        async def kept_by_housekeeping(reserve_bytes: int = 0) -> int:
            await node.git.update()
            await keep_all_spares(replace(node.ctx, disk_reserve_bytes=reserve_bytes), "auto", counted)
            return len(spares_on_disk(node.git.clone))

        async def started_by_the_next_look() -> list[str]:
            with processes_started() as started:
                await keep_all_spares(node.ctx, "auto", counted)
            return started

        node.git.someone_pushes("main", files)
        assert await kept_by_housekeeping() == 0  # one new worktree in a week
        await node.add(2, days=1)
        assert await kept_by_housekeeping() == 1
        assert await started_by_the_next_look() == []
        await repair(node.ctx)
        assert await node.db.fetchval("select count(*) from orphans") == 0
        assert await kept_by_housekeeping(10**18) == 0  # the disk is short
        assert await kept_by_housekeeping() == 1
        git(node.git.person, "rm", "-q", "-r", "d")
        git(node.git.person, "commit", "-q", "-m", "small again")
        git(node.git.person, "push", "-q", "origin", "HEAD:main")
        assert await kept_by_housekeeping() == 0
        assert await started_by_the_next_look() == []
