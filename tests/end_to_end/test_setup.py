"""SETUP_SCRIPT: the default branch's `.threadtree/setup` prepares a new worktree before the agent works in it."""

import shutil
from contextlib import AsyncExitStack

import httpx
import pytest

from tests.end_to_end.conftest import Worlds
from tests.support.patience import until_true
from tests.support.sleeping_processes import new_sleep, runs
from tests.support.world import World

TOKEN = "a-token-of-the-tests"
IGNORED = "/made\n/seen\n"


@pytest.fixture
def settings(sandbox_settings: dict[str, str]) -> dict[str, str]:
    """Return settings that run the script."""
    return {"SETUP_SCRIPT": "true", **sandbox_settings}


@pytest.fixture
def sandboxed(sandboxed_settings: dict[str, str]) -> dict[str, str]:
    """Return settings that run the script in a sandbox."""
    return {"SETUP_SCRIPT": "true", **sandboxed_settings}


async def has_script(world: World, script: str) -> None:
    """Push the script to the default branch."""
    await world.maria.pushes("main", {".threadtree/setup": script, ".gitignore": IGNORED})


async def path_of(world: World) -> str:
    """Return the path of the first worktree."""
    path: str = (await world.worktrees("path"))[0]
    return path


async def test_a_worktree_is_set_up_once_before_the_agent_works_in_it_and_again_when_it_is_made_again(
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
        path = await path_of(world)
        shutil.rmtree(path)
        await issue.says("@threadtree-bot append made: agent\nsay Three.")
        await issue.hears("Three.", "This thread's files were missing")
        assert world.text_of(path, "made") == "set up\nagent\n"


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

        answer = await issue.hears("`.threadtree/setup` ended with exit status 3", "The end of its output", "1 file")

        assert "`.threadtree/setup`, which prepares it, ended with exit status 3. It wrote last:" in answer, (
            "it was told"
        )
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


async def test_nothing_runs_unless_the_setting_says_so(world: World) -> None:
    await has_script(world, "echo set up >> made\n")
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot say One.")
    await issue.hears("One.")
    assert world.text_of(await path_of(world), "made") is None


# A worktree that is reset or made without a request


async def test_a_reset_runs_the_script_and_says_how_it_ended(a_world: Worlds, sandboxed: dict[str, str]) -> None:
    async with a_world(sandboxed) as world:
        await has_script(world, "echo set up >> made\n")
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot append made: agent\nsay One.")
        await issue.hears("One.")

        await issue.says("/reset")

        assert "conversation with the agent.\n\n`.threadtree/setup` ran for 1 s." in (await issue.hears_all())[-1]
        path = await path_of(world)
        assert world.text_of(path, "made") == "set up\n"
        await issue.says("@threadtree-bot append made: again\nsay Two.")
        await issue.hears("Two.")
        assert world.text_of(path, "made") == "set up\nagain\n", "it does not run twice"


async def test_a_script_that_fails_after_a_reset_is_shown_and_runs_again_at_the_next_request(
    a_world: Worlds, sandboxed: dict[str, str]
) -> None:
    async with a_world(sandboxed) as world:
        await has_script(world, "echo set up >> made\n")
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot say One.")
        await issue.hears("One.")
        token = world.github.bot_token
        await has_script(world, f"echo no compiler {token}\necho x > left\necho broken >> made\nexit 3\n")

        await issue.says("/worktree reset")

        answer = (await issue.hears_all())[-1]
        assert "`.threadtree/setup` ended with exit status 3. The next request runs it again." in answer
        assert "left files that git does not ignore: `left`. They count as changes of the next request;" in answer
        assert "no compiler [redacted]" in answer[answer.index("The end of its output") :]
        outcome = await world.database.fetchval("select answer from turns where not needs_agent")
        assert outcome.endswith("an entry in `.gitignore` keeps them out.")
        assert await world.worktrees("setup_done") == [False]
        await has_script(world, "echo mended >> made\n")
        await issue.says("@threadtree-bot say Two.")
        await issue.hears("Two.")
        assert world.text_of(await path_of(world), "made") == "broken\nmended\n"


async def test_a_request_waits_for_the_script_of_a_reset_and_stop_ends_that(
    a_world: Worlds, settings: dict[str, str]
) -> None:
    async with a_world(settings) as world:
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot say One.")
        await issue.hears("One.")
        sleep = new_sleep()
        await has_script(world, f"echo begun >> made\n{sleep}\n")
        await issue.says("/reset")
        await issue.sees("Running `.threadtree/setup`.")
        await until_true(lambda: runs(sleep))
        await issue.says("@threadtree-bot append made: agent\nsay Two.")
        await issue.sees("Queued. One request is ahead of this one.")
        assert runs(sleep)
        await has_script(world, "echo set up >> made\n")

        await issue.says("/stop")

        await issue.hears("`.threadtree/setup` was stopped by a request on the thread. The next request runs it again.")
        await issue.hears("Two.")
        assert not runs(sleep)
        assert world.text_of(await path_of(world), "made") == "begun\nset up\nagent\n"


async def test_a_worktree_that_the_operator_asks_for_is_set_up_before_the_turn_ends(
    a_world: Worlds, sandboxed: dict[str, str]
) -> None:
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(a_world({**sandboxed, "ADMIN_TOKEN": TOKEN}))
        headers = {"Authorization": f"Bearer {TOKEN}"}
        api = await stack.enter_async_context(httpx.AsyncClient(base_url=f"{world.pair.url}/api", headers=headers))
        await has_script(world, "echo set up >> made\n")
        issue = await world.maria.opens_issue("Greet people")

        async def outcome() -> str:
            await world.quiet()
            asked = (await api.post("/worktrees", json={"conversation": f"acme/shop#{issue.number}"})).json()
            await world.quiet()
            delivery = (await api.get(f"/deliveries/{asked['delivery']}")).json()
            turn = (await api.get(f"/turns/{delivery['turn']}")).json()
            return str(turn["answer"])

        assert ", on `threadtree/issue-1`.\n\n`.threadtree/setup` ran for " in await outcome()
        assert world.text_of(await path_of(world), "made") == "set up\n"
        assert (await outcome()).endswith("`.threadtree/setup` was not run: it ran in this checkout before.")
        await issue.says("@threadtree-bot append made: agent\nsay One.")
        await issue.hears("One.")
        assert world.text_of(await path_of(world), "made") == "set up\nagent\n"
