"""A turn begins with a fetch."""

import asyncio
from pathlib import Path

import pytest

from bot.simulated.github.faults import Held
from bot.tree.clone import arriving
from bot.tree.clone.arriving import _receive
from bot.tree.clone.clone import Clone
from tests.support.git_repositories import git
from tests.support.patience import until_true
from tests.support.world import Talk, World

GIT_REQUESTS = "*/info/refs"


def clone_of(world: World) -> Path:
    return world.data_dir / "repos" / "acme" / "shop.git"


def here(world: World) -> dict[str, str]:
    """Return GitHub's branches as the clone knows them."""
    listed = git(clone_of(world), "for-each-ref", "--format=%(refname:lstrip=3) %(objectname)", "refs/remotes/origin")
    return dict(line.split(" ") for line in listed.splitlines())


@pytest.fixture
async def thread(world: World) -> Talk:
    """Return a thread with an answer."""
    await world.maria.pushes("old", {"old.txt": "old"})
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot write hello.txt: hello")
    await issue.hears("1 file +")
    return issue


async def test_a_request_finds_what_was_pushed_and_deleted_before_it(world: World, thread: Talk) -> None:
    main = await world.maria.pushes("main", {"new.txt": "new"})
    await world.maria.pushes("new", {"other.txt": "new"})
    await world.maria.person.delete_branch(world.repository, "old")
    other, gate = await world.maria.opens_issue("Something else"), world.gate()

    await other.says(f"@threadtree-bot wait {gate}\nsay Done so.")
    await other.sees_working()
    assert git(clone_of(world), "rev-parse", "refs/heads/threadtree/issue-2") == main
    branches = await world.branches()
    await until_true(lambda: here(world) == branches)
    gate.open()
    await other.hears("Done so.")


async def test_a_branch_that_no_turn_needs_arrives_while_an_agent_works(
    world: World, thread: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, gate, sent, receive = await world.maria.pushes("art", {"a": "1"}), world.gate(), asyncio.Event(), _receive

    async def slowly(clone: Clone, arriving: Path) -> tuple[bool, bool]:
        await sent.wait()
        return await receive(clone, arriving)

    monkeypatch.setattr(arriving, "_receive", slowly)
    await thread.says(f"@threadtree-bot wait {gate}\nsay Small.")
    await thread.sees_working()
    # Another request of the repository does not wait for it either.
    other = await world.maria.opens_issue("Something else")
    await other.says("@threadtree-bot write other.txt: other\nsay Small too.")
    await other.hears("Small too.", "1 file +")
    assert "art" not in here(world)
    assert large not in git(clone_of(world), "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")

    sent.set()
    await until_true(lambda: "art" in here(world))
    gate.open()
    await thread.hears("Small.")
    assert not (clone_of(world) / "arriving" / "repository").exists()


async def test_a_request_can_be_stopped_while_github_is_asked(world: World, thread: Talk) -> None:
    answered = asyncio.Event()
    known = len(world.github.requests)
    world.faults.add(Held(answered), path=GIT_REQUESTS)
    await thread.says("@threadtree-bot say Never.")
    await thread.sees("Fetching")
    await thread.says("@threadtree-bot /stop")
    await thread.hears("**Stopped**")
    answered.set()
    await world.quiet()
    assert not any(request.path.endswith("/git-upload-pack") for request in world.github.requests[known:])


async def test_a_new_clone_is_packed_soon(world: World, thread: Talk) -> None:
    await until_true((clone_of(world) / "threadtree-packed").exists)
