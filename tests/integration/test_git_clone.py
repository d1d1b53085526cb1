"""The bare clone: made once, made again when half-made, one holder at a time."""

import asyncio
import sys
from pathlib import Path

import pytest

from bot import refs
from bot.model import IssueBranch
from bot.tree.clone.arriving import fetch_beside
from bot.tree.clone.clone import Clone, DefaultBranch, clone_lock
from bot.tree.clone.fetch import complete, remote_default_branch
from bot.tree.git.errors import GitError
from tests.support.git_repositories import GIT, GitRepositories, git
from tests.support.patience import until_true


@pytest.fixture
def world(tmp_path: Path) -> GitRepositories:
    return GitRepositories.make(tmp_path)


async def test_remote_branches_stay_apart_from_local_ones(world: GitRepositories) -> None:
    world.someone_pushes("feature/ü", {"a": "1"}, start="origin/main")
    await world.update()
    assert git(world.clone.path, "for-each-ref", "--format=%(refname)", "refs/heads", "refs/remotes").split() == [
        "refs/remotes/origin/feature/ü",
        "refs/remotes/origin/main",
    ]


async def test_a_fetch_reports_its_progress(world: GitRepositories) -> None:
    world.someone_pushes("main", {f"file-{number}": str(number) for number in range(120)})
    heard: list[str] = []
    async with world.open() as tree:
        await tree.update(world.url, heard.append)
    assert any(line.startswith("Receiving objects 100%") for line in heard)


async def test_the_branches_of_a_large_repository_are_packed_at_once(world: GitRepositories) -> None:
    tip = world.remote_tip("main")
    created = "".join(f"create refs/heads/b{number} {tip}\n" for number in range(201))
    await GIT.run(f"--git-dir={world.remote}", "update-ref", "--stdin", cwd=None, input=created.encode())
    await world.update()
    assert not (world.clone.path / "refs" / "remotes" / "origin" / "b7").exists()
    assert await world.clone.commit_at("refs/remotes/origin/b7") == tip


async def test_of_a_clone_that_is_there_only_the_named_branches_are_fetched(world: GitRepositories) -> None:
    for branch in ("feature", "gone", "feature-2", "threadtree/issue-1"):
        world.someone_pushes(branch, {branch: "1"}, start="origin/main")
    await world.update()
    before = world.known()
    after = {branch: world.someone_pushes(branch, {"new": branch}) for branch in ("feature", "feature-2", "main")}
    after["threadtree/issue-1-2"] = world.someone_pushes("threadtree/issue-1-2", {"new": "2"}, start="origin/main")
    git(world.remote, "update-ref", "-d", "refs/heads/gone")
    git(world.remote, "update-ref", "-d", "refs/heads/threadtree/issue-1")
    names = (*refs.issue_refspecs(IssueBranch(1)), *map(refs.refspec, ("main", "feature", "was-never-there", "gone")))
    async with world.open() as tree:
        await tree.update(world.url, refspecs=names)
    moved = {branch: after[branch] for branch in ("main", "feature", "threadtree/issue-1-2")}
    kept = {branch: before[branch] for branch in before.keys() - {"gone", "threadtree/issue-1"}}
    assert world.known() == kept | moved
    assert await world.clone.commit_at(after["feature-2"]) is None


async def test_a_branch_in_the_folder_that_a_deleted_one_was_is_fetched_with_all_others(world: GitRepositories) -> None:
    world.someone_pushes("feature", {"a": "1"}, start="origin/main")
    await world.update()
    git(world.remote, "update-ref", "-d", "refs/heads/feature")
    git(world.person, "checkout", "-q", "--detach")
    git(world.person, "branch", "-q", "-D", "feature")
    inside = world.someone_pushes("feature/inside", {"a": "2"}, start="origin/main")
    async with world.open() as tree:
        await tree.update(world.url, refspecs=[refs.refspec("feature/inside")])
    assert world.known() == {"main": world.remote_tip("main"), "feature/inside": inside}


async def test_a_default_branch_that_is_new_is_fetched_by_its_name(world: GitRepositories) -> None:
    await world.update()
    tip = world.someone_pushes("trunk", {"a": "1"}, start="origin/main")
    git(world.remote, "symbolic-ref", "HEAD", "refs/heads/trunk")
    async with world.open() as tree:
        await tree.update(world.url, refspecs=[refs.refspec("main")])
        assert await remote_default_branch(tree) == DefaultBranch("trunk", tip)
    assert world.known()["trunk"] == tip


@pytest.mark.parametrize("size", [1, 200], ids=["loose objects", "a pack"])
async def test_what_arrives_beside_a_turn_is_complete(world: GitRepositories, size: int) -> None:
    for branch in ("stays", "goes"):
        world.someone_pushes(branch, {branch: "1"}, start="origin/main")
    await world.update()
    new = world.someone_pushes("new", {f"{number}.txt": str(number) for number in range(size)}, start="origin/main")
    rewritten = world.someone_pushes("stays", {"a": "2"})
    git(world.remote, "update-ref", "-d", "refs/heads/goes")
    async with clone_lock(world.clone):  # a turn at its end
        beside = asyncio.create_task(fetch_beside(world.clone))
        await until_true(lambda: any((world.clone.path / "arriving").glob("objects/*/*")) and not beside.done())
        assert "new" not in world.known()
    await beside
    assert world.known() == {"main": world.remote_tip("main"), "new": new, "stays": rewritten}
    git(world.clone.path, "fsck", "--full", "--connectivity-only")
    assert not (world.clone.path / "arriving" / "repository").exists()


NEWEST = tuple(map(refs.refspec, ("main", "feature")))


@pytest.fixture
async def newest(world: GitRepositories) -> GitRepositories:
    """Return a world whose clone has the last commits of two branches alone."""
    for number in range(3):
        world.someone_pushes("main", {"a": str(number)})
    world.someone_pushes("feature", {"b": "1"}, start="origin/main")
    world.someone_pushes("other", {"c": "1"}, start="origin/main")
    async with world.open() as tree:
        await tree.update(world.url, refspecs=NEWEST, newest=True)
    assert world.clone.is_shallow
    return world


async def test_a_new_clone_begins_with_the_last_commits_of_the_branches_that_are_named(newest: GitRepositories) -> None:
    tips = {branch: newest.remote_tip(branch) for branch in ("main", "feature")}
    assert newest.known() == tips
    assert git(newest.clone.path, "rev-list", "--count", "--all") == "2"
    async with newest.open() as tree:
        await tree.update(newest.url, refspecs=NEWEST, newest=True)
    assert not newest.clone.is_shallow, "only a new clone is without its history"
    assert newest.known().keys() == {"main", "feature", "other"}


async def test_no_question_of_history_is_answered_before_it_is_here(newest: GitRepositories) -> None:
    clone, main, feature = newest.clone, newest.remote_tip("main"), newest.remote_tip("feature")
    assert await clone.is_ancestor(main, main)
    for question in (clone.is_ancestor(main, feature), clone.merge_base(main, feature)):
        with pytest.raises(GitError, match="history has not arrived"):
            await question
    with pytest.raises(GitError, match="history has not arrived"):
        await clone.ahead_behind(main, feature)
    async with newest.open() as tree:
        await complete(tree)
    assert await clone.is_ancestor(main, feature)
    assert await clone.merge_base(main, feature) == main
    assert await clone.ahead_behind(main, feature) == (0, 1)
    git(clone.path, "fsck", "--full", "--connectivity-only")


async def test_history_arrives_beside_once_and_whoever_takes_the_lock_waits_for_it(newest: GitRepositories) -> None:
    beside = asyncio.create_task(fetch_beside(newest.clone))
    await until_true(lambda: any((newest.clone.path / "arriving").glob("repository")))
    async with clone_lock(newest.clone):
        assert not newest.clone.is_shallow
    await beside
    assert newest.known().keys() == {"main", "feature", "other"}
    git(newest.clone.path, "fsck", "--full", "--connectivity-only")


async def test_history_that_came_while_it_arrived_beside_is_left_alone(newest: GitRepositories) -> None:
    async with newest.open() as tree:
        beside = asyncio.create_task(fetch_beside(newest.clone))
        await until_true(lambda: any((newest.clone.path / "arriving").glob("objects/*/*")))
        await complete(tree)
    await beside
    assert not newest.clone.is_shallow
    git(newest.clone.path, "fsck", "--full", "--connectivity-only")


async def test_many_branches_that_arrive_with_the_history_are_packed(newest: GitRepositories) -> None:
    tip = newest.remote_tip("main")
    created = "".join(f"create refs/heads/b{number} {tip}\n" for number in range(201))
    await GIT.run(f"--git-dir={newest.remote}", "update-ref", "--stdin", cwd=None, input=created.encode())
    await fetch_beside(newest.clone)
    assert not (newest.clone.path / "refs" / "remotes" / "origin" / "b7").exists()
    assert await newest.clone.commit_at("refs/remotes/origin/b7") == tip


async def test_the_lock_has_one_holder_at_a_time(world: GitRepositories) -> None:
    holders = 0

    async def hold() -> None:
        nonlocal holders
        async with clone_lock(world.clone):
            holders += 1
            assert holders == 1
            await GIT.run("version", cwd=None)
            holders -= 1

    await asyncio.gather(*(hold() for _ in range(5)))


async def test_waiting_for_the_lock_can_be_cancelled(world: GitRepositories) -> None:
    async with clone_lock(world.clone):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), clone_lock(world.clone):
                pytest.fail("two holders")
    async with clone_lock(world.clone):
        pass


async def test_a_half_made_clone_is_made_again_and_nothing_is_deleted(world: GitRepositories) -> None:
    world.clone.path.mkdir(parents=True)
    (world.clone.path / "HEAD").write_text("ref: refs/heads/main\n")
    (world.clone.path.parent / ".hello.git.0000.making").mkdir()
    await world.update()
    assert await world.clone.commit_at("refs/remotes/origin/main") == world.remote_tip("main")
    kept = world.root / "data" / "kept"
    assert [(one / "HEAD").read_text() for one in kept.iterdir()] == ["ref: refs/heads/main\n"]
    assert not list(world.clone.path.parent.glob("*.making"))


async def test_two_simultaneous_processes_make_one_clone(world: GitRepositories) -> None:
    program = """
import asyncio, sys
from pathlib import Path
from bot.tree import Clone, Git
from bot.tree.clone.clone import clone_lock
from bot.tree.clone.fetch import update

async def main():
    clone = Clone.at(Path(sys.argv[1]), "octo/hello", Git(protocols=("file",)))
    async with clone_lock(clone) as lock:
        await update(lock, sys.argv[2])

asyncio.run(main())
"""
    argv = (sys.executable, "-c", program, str(world.root / "data"), world.url)
    processes = [await asyncio.create_subprocess_exec(*argv) for _ in range(2)]
    assert [await process.wait() for process in processes] == [0, 0]
    assert sorted(child.name for child in world.clone.path.parent.iterdir()) == ["hello.git", "hello.git.lock"]
    assert await world.clone.commit_at("refs/remotes/origin/main") == world.remote_tip("main")


async def test_a_branch_named_like_the_head_of_the_remote_is_an_ordinary_branch(world: GitRepositories) -> None:
    world.someone_pushes("odd/HEAD", {"a": "1"}, start="origin/main")
    await world.update()
    async with world.open() as tree:
        assert await remote_default_branch(tree) == DefaultBranch("main", world.remote_tip("main"))


@pytest.mark.parametrize(
    ("owner", "folder"), [("..", "x"), ("o", ".."), ("o", "a/b"), ("-o", "x"), ("o", ""), ("o", "a\n")]
)
def test_no_repository_name_leads_out_of_the_data_directory(owner: str, folder: str, tmp_path: Path) -> None:
    with pytest.raises(refs.InvalidNameError):
        Clone.at(tmp_path, f"{owner}/{folder}", GIT)
