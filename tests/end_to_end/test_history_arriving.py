"""The first request on a repository starts with the newest commits; its older history arrives beside the agent."""

import asyncio
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot.sandbox.bwrap import NO_SANDBOX
from bot.simulated.github.faults import FailBefore, Faults, Held, Latency
from bot.simulated.github.git_http import Backend
from bot.simulated.github.model import Repository
from bot.tree.clone.checkout import Seen, look_at
from bot.tree.clone.clone import Clone
from bot.tree.git.runner import Git
from bot.turn import turn
from tests.end_to_end.conftest import Worlds
from tests.support.git_repositories import git, usable_sandbox
from tests.support.patience import until_true
from tests.support.world import Talk, World

COMMITS = 300
GIT_FETCHES = "*/info/refs"
"""Each fetch begins with one such request."""


@pytest.fixture
async def world(a_world: Worlds, sandbox_settings: dict[str, str]) -> AsyncIterator[World]:
    """Yield a world whose repository has a history."""
    async with a_world(sandbox_settings) as world:
        await write_history(world.repository)
        yield world


async def write_history(repository: Repository) -> None:
    """Push a long history to the repository; a branch leaves it halfway."""
    tip, lines = (await repository.git.branches())["main"], list[str]()
    for number in range(1, COMMITS):
        lines += [f"commit refs/heads/main\nmark :{number}\ncommitter A <a@example.com> {1_600_000_000 + number} +0000"]
        lines += [f"data 4\nmore\nfrom {tip if number == 1 else f':{number - 1}'}"]
        lines += [f"M 100644 inline f{number % 7}.txt\ndata {len(str(number))}\n{number}"]
    lines += [f"reset refs/heads/side\nfrom :{COMMITS // 2}\n", "done\n"]
    await repository.git.run("fast-import", "--quiet", "--force", stdin="\n".join(lines).encode())


def clone_of(world: World) -> Path:
    return world.data_dir / "repos" / "acme" / "shop.git"


def is_shallow(world: World) -> bool:
    return (clone_of(world) / "shallow").exists()


def is_whole(world: World, *branches: str) -> None:
    """Check that the clone has all history of main, and GitHub's branches."""
    assert not is_shallow(world)
    assert git(clone_of(world), "rev-list", "--count", "refs/remotes/origin/main") == str(COMMITS)
    listed = git(clone_of(world), "for-each-ref", "--format=%(refname:lstrip=3)", "refs/remotes/origin").splitlines()
    assert {"main", "side", *branches} <= set(listed)
    git(clone_of(world), "fsck", "--full", "--connectivity-only")


async def checkout_of(world: World) -> Seen:
    """Return the first worktree as the bot's git and the agent see it."""
    (path,) = await world.worktrees("path")
    sandbox = usable_sandbox(world.data_dir) if world.pair.settings.agent_sandbox == "bwrap" else NO_SANDBOX
    found = await look_at(Clone.at(world.data_dir, "acme/shop", Git(sandbox=sandbox)), Path(path))
    assert isinstance(found, Seen)
    return found


async def open_gate(world: World) -> None:
    """Let the agent in the first worktree go on, which waits for the file `go`."""
    (Path((await world.worktrees("path"))[0]) / "go").touch()


def hold_history(faults: Faults) -> asyncio.Event:
    """Let the first fetch through, and hold all others until the event is set."""
    gate = asyncio.Event()
    faults.add(Latency(0), path=GIT_FETCHES)
    faults.add(Held(gate), path=GIT_FETCHES, times=None)
    return gate


async def half_arrived(world: World, title: str = "Greet people") -> Talk:
    """Return the thread of a turn that failed before the history was there: its work is in the worktree alone."""
    gate = hold_history(world.faults)
    issue = await world.maria.opens_issue(title)
    await issue.says("@threadtree-bot write mine.txt: mine\ncommit Mine\nwrite left.txt: left\nfail It broke.")
    await issue.hears("It broke.")
    world.faults.clear()
    gate.set()
    await world.quiet()
    assert is_shallow(world)
    return issue


async def test_the_agent_works_while_the_history_arrives_and_sees_it_then(world: World) -> None:
    gate = hold_history(world.faults)
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot save prompt prompt.md\nwait go\nwrite hello.txt: hello")
    await issue.sees_working()
    checkout = await checkout_of(world)
    await until_true((checkout.path / "prompt.md").exists)
    assert "older history is still arriving" in (checkout.path / "prompt.md").read_text()
    assert git(clone_of(world), "rev-list", "--count", "--all") == "1"
    for command in (("log", "--format=%s"), ("blame", "-s", "f1.txt"), ("diff", "HEAD")):
        assert (await checkout.git(*command)).status == 0
    assert (await checkout.git("rev-list", "--count", "HEAD")).text == "1"

    gate.set()
    await until_true(lambda: not is_shallow(world))
    await until_true(lambda: not any((clone_of(world) / "arriving").iterdir()))
    assert (await checkout.git("rev-list", "--count", "HEAD")).text == str(COMMITS)
    assert not (checkout.view.common / "shallow").exists()
    await open_gate(world)
    await issue.hears("3 files +")
    is_whole(world, "threadtree/issue-1")


async def test_an_agent_that_is_done_waits_for_the_history(world: World) -> None:
    gate = hold_history(world.faults)
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot write hello.txt: hello")
    await world.until("exists (select from turns where answer is not null)")
    assert "threadtree/issue-1" not in await world.branches()
    gate.set()
    await issue.hears("1 file +1 −0")
    is_whole(world, "threadtree/issue-1")


async def test_a_stop_does_not_wait_for_the_history(world: World) -> None:
    gate = hold_history(world.faults)
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot write hello.txt: hello")
    await world.until("exists (select from turns where answer is not null)")
    await issue.says("@threadtree-bot /stop")
    await issue.hears("**Stopped**")
    assert is_shallow(world)
    gate.set()


async def test_what_did_not_arrive_beside_is_fetched_before_the_push(world: World) -> None:
    world.faults.add(Latency(0), path=GIT_FETCHES)
    world.faults.add(FailBefore(500), path=GIT_FETCHES)
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot write hello.txt: hello")
    await issue.hears("1 file +1 −0")
    is_whole(world, "threadtree/issue-1")


async def test_a_second_thread_waits_for_the_history_and_is_not_told_of_it(world: World) -> None:
    gate = hold_history(world.faults)
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot wait go\nsay Here.")
    await issue.sees_working()
    other = await world.maria.opens_issue("Something else")
    await other.says("@threadtree-bot save prompt prompt.md\nsay There.")
    await other.sees("Fetching")
    gate.set()
    await other.hears("There.")
    prompt = await world.files("threadtree/issue-2")
    assert "older history" not in prompt["prompt.md"]
    await open_gate(world)
    await issue.hears("Here.")
    is_whole(world)
    every = git(clone_of(world), "rev-list", "--objects", "--no-object-names", "refs/remotes/origin/main").split()
    packed = Counter(name for pack in clone_of(world).glob("published/pack/*.idx") for name in _names(pack))
    assert max(packed[name] for name in every) == 1, "the history came once"


def _names(index: Path) -> list[str]:
    """Return the objects of a pack."""
    with index.open("rb") as file:
        listed = subprocess.run(["git", "show-index"], stdin=file, capture_output=True, check=True)
    return [line.split()[1] for line in listed.stdout.decode().splitlines()]


async def test_the_next_request_completes_a_half_arrived_clone(world: World) -> None:
    issue = await half_arrived(world)
    await issue.says("@threadtree-bot say Here it is.")
    await issue.hears("Here it is.", "1 file +1 −0")
    is_whole(world, "threadtree/issue-1")
    assert (await checkout_of(world)).branch == "threadtree/issue-1"
    log = await world.repository.git.run("log", "--format=%s", "threadtree/issue-1")
    assert log.split("\n")[1:3] == ["Mine", "more"]


@pytest.mark.parametrize("command", ["/reset", "/worktree remove"])
async def test_commands_rescue_from_a_half_arrived_clone(world: World, command: str) -> None:
    issue = await half_arrived(world)
    await issue.says(command)
    await issue.hears("rescued first: 1 uncommitted file and 1 unpushed commit")
    is_whole(world)
    await issue.says("/worktree restore")
    await issue.hears(" restored on `threadtree/issue-1")
    (row,) = await world.worktrees("path")
    assert world.text_of(row, "left.txt") == "left\n"
    assert world.text_of(row, "mine.txt") == "mine\n"


async def test_a_worktree_is_removed_where_the_repository_went_before_its_history_came(world: World) -> None:
    issue = await half_arrived(world)
    world.faults.add(FailBefore(404), path="*/shop.git/*", times=None)
    await issue.says("/worktree remove")
    await issue.hears("rescued first")
    assert is_shallow(world)
    rescue = git(clone_of(world), "for-each-ref", "--format=%(refname)", "refs/threadtree/rescue")
    assert git(clone_of(world), "show", f"{rescue}:mine.txt") == "mine"
    assert git(clone_of(world), "show", f"{rescue}:left.txt") == "left"
    world.faults.clear()


@pytest.mark.parametrize("few_threads", [0, 1000], ids=["protocol 2", "protocol 0"])
async def test_a_server_that_cannot_leave_out_history_is_asked_for_all_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch, few_threads: int
) -> None:
    whole = Backend.body

    async def without(backend: Backend) -> AsyncIterator[bytes]:
        async for piece in whole(backend):
            yield piece.replace(b" shallow ", b" xxxxxxx ").replace(b"fetch=shallow", b"fetch=xxxxxxx")

    monkeypatch.setattr(Backend, "body", without)
    monkeypatch.setattr(turn, "FEW_THREADS", few_threads)
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot wait go\nwrite hello.txt: hello")
    await issue.sees_working()
    is_whole(world)
    await open_gate(world)
    await issue.hears("2 files +1 −0")


async def test_an_update_in_a_new_clone_waits_for_the_history_and_for_no_agent(a_world: Worlds) -> None:
    async with a_world() as world:
        await write_history(world.repository)
        await world.maria.pushes("side", {"more.txt": "more\n"})
        pull = await world.maria.opens_pull("More", head="side")
        await pull.says("/update")
        await pull.hears(f"Merged {COMMITS - COMMITS // 2 - 1} commits of `main` without conflicts.", "**Changed**")
        await world.quiet()
        is_whole(world)
        assert (await world.files("side"))["more.txt"] == "more"
