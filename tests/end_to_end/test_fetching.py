"""A turn begins with a fetch."""

import asyncio

import pytest

from bot.simulated.github.faults import Held
from tests.support.git_repositories import git
from tests.support.world import Talk, World

GIT_REQUESTS = "*/info/refs"


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
    await world.until("exists (select from worktrees where path like '%issue-2' and state = 'ready')")
    clone = world.data_dir / "repos" / "acme" / "shop.git"
    here = git(clone, "for-each-ref", "--format=%(refname:lstrip=3) %(objectname)", "refs/remotes/origin")
    gate.open()
    await other.hears("Done so.")

    assert dict(line.split(" ") for line in here.splitlines()) == await world.branches()
    assert git(clone, "rev-parse", "refs/heads/threadtree/issue-2") == main


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
