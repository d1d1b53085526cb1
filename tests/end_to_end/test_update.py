"""`/update`: the base is merged into the branch; the agent is asked only where that conflicts."""

from tests.support.world import World


async def test_commits_of_the_base_are_merged_without_an_agent(world: World) -> None:
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot write hello.txt: hello")
    await issue.hears("**Changed**")
    await world.maria.pushes("main", {"README.md": "read this\n"})

    asked = await issue.says("/update")
    heard = await issue.hears("Merged 1 commit of `main` without conflicts.", "**Changed**", "1 file")

    assert asked.reactions == ["👀"]
    assert "custom" not in heard, "no agent was asked"
    assert (await world.files("threadtree/issue-1")) == {"README.md": "read this", "hello.txt": "hello"}
    await issue.says("@threadtree-bot /update")
    await issue.hears("The branch has everything of `main`.")


async def test_the_agent_gets_the_names_of_files_that_conflict(world: World) -> None:
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot write README.md: ours")
    await issue.hears("**Changed**")
    await world.maria.pushes("main", {"README.md": "theirs\n"})

    await issue.says("/update")
    await issue.hears("custom")

    [*_, turn] = await world.turns()
    assert turn["text"] == "/update", "the row has the person's words"
    assert "Merge origin/main into the branch" in str(turn["answer"])
    assert "These files conflict:" in str(turn["answer"])


async def test_without_a_branch_nothing_is_queued(world: World) -> None:
    issue = await world.maria.opens_issue("Nothing yet")
    await issue.says("/update")
    await issue.hears("There is no branch here yet")
    assert await world.turns() == []
