"""SETUP_SCRIPT: the default branch's `.threadtree/setup` prepares a new worktree before the agent works in it."""

import shutil

import pytest

from bot import failpoints
from tests.end_to_end.conftest import Worlds
from tests.support.sleeping_processes import new_sleep, runs
from tests.support.world import World

IGNORED = "/made\n/seen\n"


@pytest.fixture(params=["off", "bwrap"])
def settings(request: pytest.FixtureRequest) -> dict[str, str]:
    """Return settings that run the script, without and with a cage."""
    caged: dict[str, str] = request.getfixturevalue("caged_settings") if request.param == "bwrap" else {}
    return {"SETUP_SCRIPT": "true", **caged}


async def has_script(world: World, script: str) -> None:
    """Push the script to the default branch."""
    await world.maria.pushes("main", {".threadtree/setup": script, ".gitignore": IGNORED})


async def path_of(world: World) -> str:
    """Return the path of the first worktree."""
    path: str = (await world.worktrees("path"))[0]
    return path


async def test_a_worktree_is_set_up_once_before_the_agent_works_in_it(
    a_world: Worlds, settings: dict[str, str]
) -> None:
    async with a_world(settings) as world:
        await has_script(world, "#!/bin/sh -e\necho set up >> made\ntest -f README.md\n")
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot append made: first\nsay One.")
        await issue.hears("One.")
        await issue.says("@threadtree-bot append made: second\nsay Two.")
        await issue.hears("Two.")

        made = world.text_of(await path_of(world), "made")

        assert made == "set up\nfirst\nsecond\n"
        assert await world.worktrees("setup_done") == [True]


async def test_a_worktree_that_was_made_again_is_set_up_again(a_world: Worlds, settings: dict[str, str]) -> None:
    async with a_world(settings) as world:
        await has_script(world, "echo set up >> made\n")
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot say One.")
        await issue.hears("One.")
        path = await path_of(world)
        shutil.rmtree(path)

        await issue.says("@threadtree-bot append made: agent\nsay Two.")

        await issue.hears("Two.", "This thread's files were missing")
        assert world.text_of(path, "made") == "set up\nagent\n"


async def test_a_script_in_a_pull_request_does_not_run(a_world: Worlds, settings: dict[str, str]) -> None:
    async with a_world(settings) as world:
        await has_script(world, "echo main > made\n")
        await world.maria.pushes("topic", {".threadtree/setup": "echo topic > made\n"}, base="main")
        pull = await world.maria.opens_pull("A topic", head="topic")

        await pull.says("@threadtree-bot say Done so.")

        await pull.hears("Done so.")
        assert world.text_of(await path_of(world), "made") == "main\n"


async def test_the_script_gets_a_home_and_a_path_and_nothing_of_the_agents(
    a_world: Worlds, settings: dict[str, str]
) -> None:
    key = "of-the-model-0123456789"
    async with a_world({**settings, "AGENT_ENV": "MODEL_KEY", "MODEL_KEY": key}) as world:
        await has_script(world, "env > seen\ntouch $HOME/known\n")
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot env")
        await issue.hears("MODEL_KEY")

        seen = world.text_of(await path_of(world), "seen")

        assert seen is not None
        names = {line.split("=")[0] for line in seen.splitlines()}
        assert {"HOME", "PATH", "LANG"} <= names
        assert names.isdisjoint({"MODEL_KEY", "GITHUB_TOKEN", "GITHUB_WEBHOOK_SECRET", "DATABASE_URL"})
        assert key not in seen
        assert [path.parent.parent.name for path in world.data_dir.glob("homes/*/known")] == ["homes"]


async def test_a_failed_script_is_shown_reported_and_retried(a_world: Worlds, settings: dict[str, str]) -> None:
    async with a_world(settings) as world:
        token = world.github.bot_token
        noise = "seq 1 100\nprintf '\\033[31mno\\033[0m ``` compiler %s\\r\\n'"
        await has_script(world, f"{noise} {token}\necho broken >> made\nexit 3\n")
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot write a.txt: a\necho prompt")

        answer = await issue.hears("`.threadtree/setup` ended with status 3", "The end of its output", "1 file")

        assert "`.threadtree/setup`, which prepares it, ended with status 3. It wrote last:" in answer, "it was told"
        fold = answer[answer.index("> [!NOTE]") :]
        assert "> 100\n> no ``` compiler [redacted]\n" in fold
        assert "\n> 42\n> 43\n" in fold
        assert "\n> 41\n" not in fold, "sixty lines"
        assert token not in answer
        assert await world.worktrees("setup_done") == [False]

        await has_script(world, "echo mended >> made\n")
        await issue.says("@threadtree-bot say Two.")

        assert ".threadtree" not in await issue.hears("Two.")
        assert world.text_of(await path_of(world), "made") == "broken\nmended\n"


async def test_files_of_the_script_that_git_does_not_ignore_are_named(
    a_world: Worlds, settings: dict[str, str]
) -> None:
    async with a_world(settings) as world:
        await has_script(world, "echo x > made\necho x > left.lock\n")
        issue = await world.maria.opens_issue("Greet people")

        await issue.says("@threadtree-bot write a.txt: a\necho prompt")

        await issue.hears("left files that git does not ignore: `left.lock`.", "left 1 file(s)", "2 files +")
        assert set(await world.files("threadtree/issue-1")) == {
            *(".gitignore", ".threadtree/setup", "README.md", "a.txt", "left.lock")
        }


async def test_the_thread_shows_the_running_script_and_stop_ends_it(a_world: Worlds, settings: dict[str, str]) -> None:
    async with a_world(settings) as world:
        sleep = new_sleep()
        await has_script(world, f"echo begun > made\n{sleep} &\n{sleep}\n")
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot say Never.")
        await issue.sees("Running `.threadtree/setup`.")

        await issue.says("@threadtree-bot /stop")

        await issue.hears("**Stopped**")
        assert world.text_of(await path_of(world), "made") == "begun\n"
        assert not runs(sleep)


@pytest.mark.expects_errors
async def test_a_turn_interrupted_before_the_record_sets_up_again(
    a_world: Worlds, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(name: str) -> None:
        if name == "worktree-set-up":
            monkeypatch.undo()
            raise RuntimeError(name)

    async with a_world(settings) as world:
        await has_script(world, "echo set up >> made\n")
        monkeypatch.setattr(failpoints, "listener", breaks)
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot say One.")
        await issue.hears("**Failed:**")

        await issue.says("@threadtree-bot say Two.")

        await issue.hears("Two.")
        assert world.text_of(await path_of(world), "made") == "set up\nset up\n"


async def test_a_repository_without_a_script_is_checked_once(a_world: Worlds) -> None:
    async with a_world({"SETUP_SCRIPT": "true"}) as world:
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot say One.")
        assert ".threadtree" not in await issue.hears("One.")
        assert await world.worktrees("setup_done") == [True]


async def test_nothing_runs_unless_the_setting_says_so(world: World) -> None:
    await has_script(world, "echo set up >> made\n")
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot say One.")
    await issue.hears("One.")
    assert world.text_of(await path_of(world), "made") is None
