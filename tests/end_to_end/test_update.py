"""`/update`: the base is merged into the branch; the agent is asked only where that conflicts."""

from datetime import timedelta

from tests.end_to_end.conftest import Worlds
from tests.end_to_end.test_remarks import opened_by_the_bot
from tests.support.patience import PATIENCE_SECONDS, eventually
from tests.support.world import World

CHECK_AT = "select check_at from pull_requests"
CHECK_AT_AND_WHETHER_IT_IS_ASKED = """
select check_at, exists (select from procrastinate_jobs where status = 'doing' and args->>'name' = 'conflicts')
from pull_requests
"""


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


async def test_a_pull_request_of_the_bot_says_once_that_it_conflicts(a_world: Worlds) -> None:
    async with a_world({"SWEEP_INTERVAL_SECONDS": "1"}) as world:
        pull = await opened_by_the_bot(world)
        await world.maria.pushes("other", {"cart.py": "total = None\n"}, base="main")
        other = await world.maria.opens_pull("Another", head="other")
        await github_is_asked(world)
        assert not pull.from_bot

        await other.merges()
        await world.until(f"({CHECK_AT}) < '{world.clock() + timedelta(minutes=5)}'")  # others may conflict now
        await github_is_asked(world)
        heard = await pull.hears("This pull request conflicts with `main`, so it cannot be merged as it is.")
        assert "Write `/update`: it merges `main` into the branch, and the agent resolves the conflicts." in heard
        await world.maria.pushes("threadtree/issue-1", {"more.py": "more = 1\n"})
        await github_is_asked(world)
        assert len(pull.from_bot) == 1, "once for as long as it lasts"

        await world.maria.pushes("main", {"cart.py": "total = 0\n"})
        await github_is_asked(world)
        await world.maria.pushes("main", {"cart.py": "total = -1\n"})
        await github_is_asked(world)
        await pull.hears("This pull request conflicts with `main`")
        await world.maria.pushes("main", {"cart.py": "total = 0\n"})
        await github_is_asked(world)
        await world.maria.pushes("main", {"cart.py": "total = -1\n"})
        await github_is_asked(world)
        assert not pull.unread, "it was told of this head"

        await world.maria.pushes("main", {"cart.py": "total = 0\n"})
        await pull.says("/update")
        await pull.hears("Merged", "**Changed**")
        await github_is_asked(world)
        assert not pull.unread
        await pull.closes()
        await world.until(f"({CHECK_AT}) is null")
        await pull.reopens()
        await world.until(f"({CHECK_AT}) is not null")


async def github_is_asked(world: World) -> None:
    """Let an hour pass, and wait until GitHub was asked and has told whether the bot's pull request conflicts."""
    world.clock.move(3700)

    async def is_known() -> bool:
        at, is_asking = await world.database.fetchrow(CHECK_AT_AND_WHETHER_IT_IS_ASKED)
        if at < world.clock() + timedelta(minutes=5) and not is_asking:
            world.clock.move(61)  # it is not known yet
            return False
        return not is_asking

    await eventually(is_known, PATIENCE_SECONDS)
