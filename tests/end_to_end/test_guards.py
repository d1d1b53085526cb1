"""Changes that are never pushed: the work stays in the worktree, and the reply names the rule."""

import base64

from tests.end_to_end.conftest import Worlds
from tests.support.world import World, unseen

WORKFLOW = "write .github/workflows/ci.yml: on: push"


async def test_a_change_of_workflows_withholds_the_whole_push(world: World) -> None:
    issue = await world.maria.opens_issue("Speed up the build")
    await issue.says(f"@threadtree-bot {WORKFLOW}\nwrite b.txt: two\nsay Faster now.")

    await issue.hears("Faster now.", "Not pushed", "ALLOW_WORKFLOW_CHANGES=true")

    assert list(await world.branches()) == ["main"]
    [path] = await world.worktrees("path")
    assert world.text_of(path, "b.txt") == "two\n"


async def test_a_change_of_workflows_is_pushed_if_allowed(a_world: Worlds) -> None:
    async with a_world({"ALLOW_WORKFLOW_CHANGES": "true"}) as world:
        issue = await world.maria.opens_issue("Speed up the build")
        await issue.says(f"@threadtree-bot {WORKFLOW}\nsay Faster now.")
        await issue.hears("Faster now.", "1 file +")


async def test_a_commit_with_a_secret_of_the_bot_is_withheld(world: World) -> None:
    secret = base64.b64encode(world.github.bot_token.encode()).decode()
    issue = await world.maria.opens_issue("Notes")
    await issue.says("@threadtree-bot" + unseen(f"write notes.txt: see {secret} here", "say Noted."))

    await issue.hears("Noted.", "Not pushed", "hold a secret")

    assert list(await world.branches()) == ["main"]


async def test_a_branch_that_was_protected_while_the_agent_worked_is_not_pushed(world: World) -> None:
    issue, gate = await world.maria.opens_issue("Greet people"), world.gate()
    await issue.says("@threadtree-bot write hello.txt: hello")
    await issue.hears("1 file +")
    await issue.says(f"@threadtree-bot wait {gate}\nappend hello.txt: more\nsay Longer now.")
    await issue.sees_working()
    world.repository.protect("threadtree/issue-1")
    gate.open()
    await issue.hears("Longer now.", "Not pushed", "protected or the default branch")


async def test_a_branch_that_is_the_default_one_since_the_last_request_is_not_pushed(world: World) -> None:
    await world.maria.pushes("next", {"a.txt": "one\n"})
    pull = await world.maria.opens_pull("Next", head="next")
    await pull.says("@threadtree-bot append a.txt: two")
    await pull.hears("1 file +")
    pushed = await world.branches()
    world.repository.default_branch = "next"

    await pull.says("@threadtree-bot append a.txt: three\nsay Longer now.")
    await pull.hears("Longer now.", "Not pushed", "protected or the default branch")

    assert await world.branches() == pushed


async def test_commits_of_the_agent_that_mention_or_close_are_named(a_world: Worlds) -> None:
    async with a_world() as world:
        await world.maria.opens_issue("Never close this")
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot write a.txt: x\ncommit Closes #1, thanks @acme/everyone")
        await issue.hears("Messages of the agent's commits mention somebody or close an issue when they are merged: `")

        await issue.says("@threadtree-bot write b.txt: x\ncommit Closes #2")
        assert "Messages of the agent's commits" not in await issue.hears("1 file")


async def test_files_under_a_filter_are_left_out_and_told_to_both_sides(world: World) -> None:
    await world.maria.pushes("main", {".gitattributes": "*.bin filter=git-crypt diff=git-crypt\n", "a.bin": "sealed"})
    talk = await world.maria.opens_issue("Pictures")
    await talk.says(
        "@threadtree-bot echo prompt\nwrite a.bin: the new picture\nwrite b.bin: another\nwrite c.txt: text"
    )

    await talk.hears("*.bin filter=git-crypt", "Not committed, because `.gitattributes`", "`a.bin`, `b.bin`")

    files = await world.files(f"threadtree/issue-{talk.number}")
    assert files["a.bin"] == "sealed"
    assert "b.bin" not in files
    assert files["c.txt"] == "text"
