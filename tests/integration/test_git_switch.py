"""A worktree switches to the branch of a pull request, unless that would leave or overwrite work."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bot import refs
from bot.model import HeadBranch
from bot.sharing_rules import Misfit
from bot.tree.clone.checkout import require_checkout
from bot.tree.sync import switch
from tests.support import damage
from tests.support.git_repositories import RESCUE, GitRepositories, entry_of, git

ISSUE, HEAD = "threadtree/issue-1", "feature"


@pytest.fixture
def world(tmp_path: Path) -> GitRepositories:
    return GitRepositories.make(tmp_path, "bwrap")


async def switched(world: GitRepositories, path: Path | None = None) -> Misfit | None:
    async with world.open() as tree:
        await tree.fetch()
        return await switch(await require_checkout(tree, path or world.path), ISSUE, HEAD)


async def an_issue_and_a_pull_request(world: GitRepositories) -> str:
    """Make the worktree of issue 1 with a pushed commit, and a pull request on top; return its head."""
    await world.with_worktree()
    world.agent_commits({"hello.txt": "hello\n", "gone.txt": "gone\n"})
    await world.publish()
    world.someone_pushes(HEAD, {"hello.txt": "hello world\n", "more/new.txt": "new\n"}, start=f"origin/{ISSUE}")
    git(world.person, "rm", "-q", "gone.txt")
    return world.push_commit(HEAD, {"other.txt": "other\n"})


async def test_a_clean_worktree_switches_to_the_head_of_the_pull_request(world: GitRepositories) -> None:
    head = await an_issue_and_a_pull_request(world)
    before = git(world.clone.path, "rev-parse", refs.local(ISSUE))

    assert await switched(world) is None
    assert world.agent("rev-parse", "HEAD") == head

    assert await world.seen() == (head, HEAD, 0)
    assert (world.path / "hello.txt").read_text() == "hello world\n"
    assert not (world.path / "gone.txt").exists()
    assert git(world.clone.path, "rev-parse", refs.local(ISSUE)) == before, "the branch before stays"
    entry = await entry_of(world.clone, world.path)
    assert entry is not None
    assert entry.branch == HEAD, "git's record knows it too"


async def test_the_agent_works_and_pushes_on_the_new_branch(world: GitRepositories) -> None:
    await an_issue_and_a_pull_request(world)
    await switched(world)

    assert world.agent("status", "--short", "--branch").startswith(f"## {HEAD}...origin/{HEAD}")
    commit = world.agent_commits({"mine.txt": "mine\n"})
    async with world.open() as tree:
        await tree.sync(HEAD, RESCUE)
    assert git(world.clone.path, "rev-parse", refs.local(HEAD)) == commit
    assert world.remote_tip(ISSUE) != commit


async def test_a_branch_without_a_commit_of_its_own_may_be_left_too(world: GitRepositories) -> None:
    await world.with_worktree()
    head = world.someone_pushes(HEAD, {"a.txt": "a\n"}, start="origin/main")

    assert await switched(world) is None
    assert world.agent("rev-parse", "HEAD") == head


async def test_a_local_branch_that_is_behind_is_fast_forwarded(world: GitRepositories) -> None:
    await an_issue_and_a_pull_request(world)
    behind = git(world.remote, "rev-parse", f"{HEAD}~1")
    git(world.clone.path, "fetch", "-q")
    git(world.clone.path, "branch", HEAD, behind)
    head = world.remote_tip(HEAD)

    assert await switched(world) is None
    assert world.agent("rev-parse", "HEAD") == head
    assert git(world.clone.path, "rev-parse", refs.local(HEAD)) == head


def merging(world: GitRepositories) -> None:
    world.agent("commit", "-q", "--allow-empty", "-m", "side")
    world.agent("update-ref", "MERGE_HEAD", "HEAD~1")


def elsewhere(world: GitRepositories) -> None:
    world.agent("switch", "-q", "-c", "elsewhere")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (damage.edit, "uncommitted"),
        (damage.untracked_file, "uncommitted"),
        (damage.staged_edit, "uncommitted"),
        (merging, "unfinished"),
        (elsewhere, "off-branch"),
        (damage.unpushed_commit_beside_the_branch, "off-branch"),
        (damage.hidden_edit, "hidden-edits"),
        (damage.stash, "only-here"),
        (damage.unpushed_commit, "not-contained"),
    ],
)
async def test_a_worktree_with_more_than_the_pull_request_stays(
    world: GitRepositories, spoil: Callable[[GitRepositories], None], why: Misfit
) -> None:
    await an_issue_and_a_pull_request(world)
    spoil(world)
    before = snapshot(world)

    assert await switched(world) == why

    assert snapshot(world) == before


def snapshot(world: GitRepositories) -> tuple[object, ...]:
    """Return everything that a person sees of the worktree."""
    files = {
        str(file.relative_to(world.path)): file.read_bytes()
        for file in sorted(world.path.rglob("*"))
        if file.is_file() and file.name != ".git"
    }
    shown = [world.agent(*command) for command in (("status", "--porcelain"), ("branch", "--list"), ("stash", "list"))]
    return files, shown, world.agent("rev-parse", "HEAD")


async def test_an_ignored_file_is_not_overwritten(world: GitRepositories) -> None:
    await world.with_worktree()
    world.agent_commits({".gitignore": "local.env\n"})
    await world.publish()
    world.someone_pushes(HEAD, {".gitignore": "", "local.env": "theirs\n"}, start=f"origin/{ISSUE}")
    (world.path / "local.env").write_text("precious\n")

    assert await switched(world) == "in-the-way"

    assert (world.path / "local.env").read_text() == "precious\n"
    assert await world.seen() == (world.remote_tip(ISSUE), ISSUE, 0)


async def test_a_switch_to_a_deleted_branch_is_refused(world: GitRepositories) -> None:
    await an_issue_and_a_pull_request(world)
    git(world.person, "push", "-q", "origin", f":{HEAD}")

    assert await switched(world) == "branch-gone"


async def test_a_branch_that_is_checked_out_elsewhere_stays_there(world: GitRepositories) -> None:
    await an_issue_and_a_pull_request(world)
    other = world.path.with_name("pr-2")
    await world.created(HeadBranch(HEAD), other)

    assert await switched(world) == "branch-elsewhere"

    assert await world.seen(other) == (world.remote_tip(HEAD), HEAD, 0)


async def test_a_local_branch_with_commits_of_its_own_is_not_moved(world: GitRepositories) -> None:
    await an_issue_and_a_pull_request(world)
    git(world.clone.path, "fetch", "-q")
    tree = git(world.clone.path, "rev-parse", f"refs/remotes/origin/{HEAD}^{{tree}}")
    mine = git(world.clone.path, "commit-tree", "-m", "mine", "-p", f"refs/remotes/origin/{HEAD}", tree)
    git(world.clone.path, "branch", HEAD, mine)

    assert await switched(world) == "branch-diverged"

    assert git(world.clone.path, "rev-parse", refs.local(HEAD)) == mine


async def test_a_branch_of_that_name_that_the_agent_made_is_not_taken_for_the_pull_requests(
    world: GitRepositories,
) -> None:
    await an_issue_and_a_pull_request(world)
    world.agent("switch", "-q", "-c", HEAD)
    mine = world.agent_commits({"mine.txt": "mine\n"})

    assert await switched(world) is not None

    assert world.agent("rev-parse", "HEAD") == mine


async def test_a_branch_of_that_name_in_its_sandbox_takes_the_clones_nowhere(tmp_path: Path) -> None:
    world = GitRepositories.make(tmp_path, "bwrap")
    await an_issue_and_a_pull_request(world)
    head = world.remote_tip(HEAD)
    git(world.clone.path, "fetch", "-q")
    git(world.clone.path, "branch", HEAD, head)
    world.agent("switch", "-q", "--no-guess", "-c", HEAD)

    assert await switched(world) == "off-branch"

    assert git(world.clone.path, "rev-parse", refs.local(HEAD)) == head


async def test_uncommitted_files_are_work_also_where_the_branch_has_some_of_them(world: GitRepositories) -> None:
    await an_issue_and_a_pull_request(world)
    (world.path / "hello.txt").write_text("hello world\n")
    (world.path / "gone.txt").write_text("changed\n")
    before = snapshot(world)

    assert await switched(world) == "uncommitted"

    assert snapshot(world) == before


@pytest.mark.parametrize("name", ["-", "--force", "@{-1}", "a..b", "HEAD"])
async def test_names_with_a_special_meaning_do_not_reach_git(world: GitRepositories, name: str) -> None:
    await world.with_worktree()
    async with world.open() as tree:
        with pytest.raises(refs.InvalidNameError):
            await tree.switch(ISSUE, name)
