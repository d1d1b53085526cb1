"""What people took off a branch on GitHub is pushed nowhere; what the bot made, and nobody had, is.

The table: how the branch is on GitHub, what the worktree has, and what a turn then pushes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from bot.model import IssueBranch
from bot.tree.push import Pushed
from bot.tree.sync import Synced
from tests.support.git_repositories import RESCUE, GitRepositories, git

BRANCH, PARKED = "threadtree/issue-1", "threadtree/issue-1-turn-7"
OnGitHub = Literal["as-it-was", "shortened", "amended", "deleted", "restored", "newer"]
Made = Literal["nothing", "a file", "on the secret", "its own way"]


@dataclass(frozen=True, slots=True)
class Case:
    """`seen`: the turn began after the change on GitHub; else it came while the agent worked, and `fetched` by the turn
    of another thread or not. `left`: an earlier turn left a commit unpublished.

    `branch` and `parked` are the files on GitHub beside the README, None without such a branch.
    """

    on_github: OnGitHub
    made: Made
    how: str
    branch: str | None
    parked: str | None = None
    synced: str | None = None
    seen: bool = False
    fetched: bool = False
    left: bool = False


CASES = [
    Case("as-it-was", "nothing", "nothing", "secret"),
    Case("as-it-was", "a file", "pushed", "file secret"),
    Case("as-it-was", "nothing", "pushed", "left secret", left=True),
    Case("newer", "a file", "merged", "file newer secret"),
    Case("newer", "nothing", "nothing", "newer secret"),
    Case("shortened", "nothing", "nothing", "", seen=True, synced="followed"),
    Case("shortened", "a file", "pushed", "file", seen=True, synced="followed"),
    Case("shortened", "nothing", "parked", "", "left", seen=True, left=True, synced="rewritten"),
    Case("shortened", "a file", "parked", "", "file left", seen=True, left=True, synced="rewritten"),
    Case("shortened", "nothing", "nothing", ""),
    Case("shortened", "nothing", "nothing", "", fetched=True),
    Case("shortened", "a file", "parked", "", "file"),
    Case("shortened", "a file", "parked", "", "file", fetched=True),
    Case("shortened", "on the secret", "needs-taken", ""),
    Case("amended", "nothing", "nothing", "amended", seen=True, synced="followed"),
    Case("amended", "a file", "pushed", "amended file", seen=True, synced="followed"),
    Case("amended", "a file", "parked", "amended", "amended file"),
    Case("amended", "a file", "parked", "amended", "amended file", fetched=True),
    Case("amended", "its own way", "pushed", "amended file", seen=True, left=True, synced="rewritten"),
    Case("restored", "a file", "pushed", "file secret", seen=True),
    Case("deleted", "nothing", "nothing", None, seen=True, synced="branch-deleted"),
    Case("deleted", "a file", "pushed", "file secret", seen=True, synced="branch-deleted"),
]


def change(world: GitRepositories, on_github: OnGitHub) -> None:
    ref = f"refs/heads/{BRANCH}"
    secret = world.remote_tip(BRANCH)
    match on_github:
        case "shortened":
            git(world.remote, "update-ref", ref, f"{ref}^")
        case "amended":
            git(world.remote, "update-ref", ref, f"{ref}^")
            world.someone_pushes(BRANCH, {"amended": "1"})
        case "deleted":
            git(world.remote, "update-ref", "-d", ref)
        case "restored":
            git(world.remote, "update-ref", "-d", ref)
            git(world.remote, "update-ref", ref, secret)
        case "newer":
            world.someone_pushes(BRANCH, {"newer": "1"})
        case "as-it-was":
            pass


def files_of(world: GitRepositories, branch: str) -> str | None:
    if not git(world.remote, "branch", "--list", branch):
        return None
    return " ".join(name for name in git(world.remote, "ls-tree", "--name-only", branch).split() if name != "README.md")


@pytest.mark.parametrize("case", CASES, ids=repr)
async def test_what_is_pushed(tmp_path: Path, case: Case) -> None:
    world = await GitRepositories.make(tmp_path, "bwrap").with_worktree()
    world.agent_commits({"secret": "hunter2\n"})
    assert await world.pushed() == Pushed("pushed")
    secret = world.remote_tip(BRANCH)
    left = world.agent_commits({"left": "1"}) if case.left else secret
    if case.seen:
        change(world, case.on_github)
    async with world.open() as tree:
        await tree.fetch()
        synced = await tree.sync(BRANCH, RESCUE)
    assert (synced and synced.how) == case.synced
    began = world.agent("rev-parse", "HEAD")
    if not case.seen:
        change(world, case.on_github)
    if case.fetched:
        await world.update()
    if case.made == "its own way":
        world.agent("reset", "-q", "--hard", f"origin/{BRANCH}")
    if case.made != "nothing":
        world.agent_commits({"secret": "hunter3\n"} if case.made == "on the secret" else {"file": "1"})

    done = await world.pushed(began=began)

    assert (done.how, files_of(world, BRANCH), files_of(world, PARKED)) == (case.how, case.branch, case.parked)
    if case.synced == "followed":
        assert git(world.clone.path, "rev-parse", RESCUE) == secret, "what was here is kept"
    if case.on_github in ("shortened", "amended"):
        on_github = git(world.remote, "rev-list", "--all").split()
        assert secret not in on_github, "GitHub had it, and has it no more"
    if done.how == "parked":
        assert git(world.clone.path, "rev-parse", RESCUE) != world.remote_tip(PARKED)
        assert git(world.remote, "log", "-1", "--format=%an|%s", PARKED) == "person@NAME|the agent's work"
    if done.how == "needs-taken":
        assert done.names == ("secret",)
        assert world.agent("rev-parse", "HEAD~") == left, "the work stays"


async def test_commits_that_were_parked_are_pushed_to_the_branch_with_the_next_work(tmp_path: Path) -> None:
    world = await GitRepositories.make(tmp_path, "bwrap").with_worktree()
    world.agent_commits({"secret": "hunter2\n"})
    await world.pushed()
    world.agent_commits({"mine": "1"})
    change(world, "shortened")
    assert (await world.pushed()).how == "parked"
    async with world.open() as tree:
        await tree.fetch()
        assert await tree.sync(BRANCH, RESCUE) is None, "the worktree goes on from what GitHub has"

    began = world.agent("rev-parse", "HEAD")
    assert await world.pushed(began=began) == Pushed("nothing"), "a question pushes nothing"
    world.agent_commits({"more": "1"})
    assert await world.pushed(began=began) == Pushed("pushed")
    assert files_of(world, BRANCH) == "mine more"


async def test_a_worktree_that_is_made_again_follows_what_was_taken_off_its_branch(tmp_path: Path) -> None:
    """Its thread was closed and opened again, or moved to another machine and back."""
    world = await GitRepositories.make(tmp_path, "bwrap").with_worktree()
    secret = world.agent_commits({"secret": "hunter2\n"})
    await world.pushed()
    world.forget(world.path)
    git(world.clone.path, "worktree", "remove", "--force", "--force", str(world.path))
    change(world, "shortened")

    made = await world.created(IssueBranch(1))

    async with world.open() as tree:
        synced = await tree.sync(BRANCH, RESCUE)
    assert (made.tip, synced) == (secret, Synced("followed", 1, 0))
    assert world.agent("rev-parse", "HEAD") == world.remote_tip(BRANCH)


async def test_what_a_rescue_brought_back_is_not_pushed_again(tmp_path: Path) -> None:
    """The branch has followed since, so that only the objects tell what GitHub had."""
    world = await GitRepositories.make(tmp_path, "bwrap").with_worktree()
    secret = world.agent_commits({"secret": "hunter2\n"})
    await world.pushed()
    change(world, "shortened")
    async with world.open() as tree:
        await tree.fetch()
        await tree.sync(BRANCH, RESCUE)
    began = world.agent("rev-parse", "HEAD")
    world.agent("reset", "-q", "--hard", secret)
    world.agent_commits({"mine": "1"})

    assert (await world.pushed(began=began)).how == "parked"

    assert (files_of(world, BRANCH), files_of(world, PARKED)) == ("", "mine")


async def test_a_branch_that_takes_no_merges_gets_the_work_on_top_of_newer_commits(tmp_path: Path) -> None:
    world = await GitRepositories.make(tmp_path, "bwrap").with_worktree()
    world.agent_commits({"mine": "1"})
    await world.pushed()
    world.agent_commits({"more": "1"})
    change(world, "newer")

    assert await world.pushed(is_linear=True) == Pushed("merged")

    assert files_of(world, BRANCH) == "mine more newer"
    assert git(world.remote, "rev-list", "--min-parents=2", BRANCH) == ""
