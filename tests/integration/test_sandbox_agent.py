"""An ACP agent in its sandbox edits and commits; the bot imports its commits and pushes them."""

import sys
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

import bot
from bot.agents.acp import AcpDriver
from bot.agents.driver import AgentDone, Launch, SessionOpened
from bot.sandbox.bwrap import Bind, agent_environment
from bot.tree import Synced
from bot.tree.push import Pushed
from tests.integration.test_acp_driver import ask, opened
from tests.support.git_repositories import (
    BOT,
    GIT,
    LABEL,
    RESCUE,
    SEARCH_PATH,
    GitRepositories,
    git,
    usable_sandbox,
)

BRANCH = "threadtree/issue-1"


@pytest.fixture
async def world(tmp_path: Path) -> GitRepositories:
    return await GitRepositories.make(tmp_path, "bwrap").with_worktree()


def launch(world: GitRepositories) -> Launch:
    package = Path(bot.__file__).parent
    argv = world.agent_argv(sys.executable, "-m", "bot.simulated.agent", "--resume", binds=(Bind(package),))
    variables = {"PYTHONPATH": str(package.parent)}
    return Launch(tuple(argv), agent_environment(world.home, SEARCH_PATH, "C.UTF-8", variables), world.path)


async def turn(world: GitRepositories, resume: str | None, *lines: str) -> SessionOpened:
    """Run one turn as the bot does, from the agent's start to the push."""
    async with aclosing(AcpDriver(launch(world))) as agent:
        session = await agent.open(resume)
        assert isinstance(session, SessionOpened), session
        assert isinstance(await ask(agent, *lines), AgentDone)
    async with world.open() as tree:
        assert await tree.return_to_branch(BRANCH, LABEL) is None
        assert (await tree.commit("rest", BOT, None)).sha
    assert await world.pushed(BRANCH) == Pushed("pushed")
    return session


def commits_on_github(world: GitRepositories) -> int:
    return int(git(world.remote, "rev-list", "--count", BRANCH, "^main"))


async def test_two_turns_of_one_session_are_committed_pushed_and_brought_up_to_date(world: GitRepositories) -> None:
    session = await turn(world, None, "write a: 1", "commit Add a", "write b: 2")
    assert commits_on_github(world) == 2
    world.someone_pushes(BRANCH, {"theirs": "1"})
    async with world.open() as tree:
        await tree.fetch()
        assert await tree.sync(BRANCH, RESCUE) == Synced("fast-forwarded", behind=1)
    again = await turn(world, session.assistant_session_id, "write c: 3", "commit Add c", "write d: 4")
    assert again.resumed
    subjects = git(world.remote, "log", "--format=%s", "--reverse", BRANCH).splitlines()
    assert subjects == ["change README.md", "Add a", "rest", "change theirs", "Add c", "rest"]


async def test_what_a_stopped_turn_committed_is_there_for_the_next(world: GitRepositories) -> None:
    async with aclosing(AcpDriver(launch(world))) as agent:
        await opened(agent)
        await ask(agent, "write a: 1", "commit Add a")
    await turn(world, None, "write b: 2")
    assert commits_on_github(world) == 2


@pytest.mark.parametrize("lock", ["state/index.lock", f"refs/heads/{BRANCH}.lock", "common/packed-refs.lock"])
async def test_a_lock_left_by_a_git_that_was_killed_in_the_sandbox_is_no_obstacle(
    world: GitRepositories, lock: str
) -> None:
    (world.view().private / lock).touch()
    (world.path / "a").write_text("1")
    async with world.open() as tree:
        assert await tree.return_to_branch(BRANCH, LABEL) is None
        assert (await tree.commit("rest", BOT, None)).sha


async def test_commits_on_a_detached_head_disturb_no_fetch_and_are_imported_by_name(world: GitRepositories) -> None:
    world.agent("switch", "-q", "--detach")
    stray = world.agent_commits({"a": "1"})
    world.someone_pushes("main", {"b": "2"})
    await world.update()
    assert await world.clone.commit_at(stray) is None
    await world.bring_home()
    assert await world.clone.commit_at(stray) == stray
    assert await world.clone.commit_at(f"refs/heads/{BRANCH}") != stray


async def test_a_worktree_used_without_a_sandbox_goes_on_in_one(tmp_path: Path) -> None:
    free = GitRepositories.make(tmp_path)
    await free.created()
    mine = free.agent_commits({"a": "1"})
    (free.path / "b").write_text("2")
    world = replace(free, clone=replace(free.clone, git=replace(GIT, sandbox=usable_sandbox(tmp_path / "data"))))
    assert await world.seen() == (mine, BRANCH, 1)
    assert world.agent("status", "--porcelain") == "?? b"
    await turn(world, None, "write c: 3")
    assert commits_on_github(world) == 2
    assert git(world.remote, "ls-tree", "--name-only", BRANCH).split() == ["README.md", "a", "b", "c"]
