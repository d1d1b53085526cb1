"""Order: first in, first out within a conversation; conversations in parallel, as far as the limits allow."""

from bot.simulated.github.faults import FailBefore
from tests.end_to_end.conftest import Worlds
from tests.support.world import World


async def test_two_conversations_run_at_the_same_time(world: World) -> None:
    first, second = await world.maria.opens_issue("One"), await world.maria.opens_issue("Two")
    gate = world.gate()
    await first.says(f"@threadtree-bot wait {gate}\nsay First.")
    await second.says(f"@threadtree-bot wait {gate}\nsay Second.")

    await first.sees_working()
    await second.sees_working()
    assert await world.turns("state") == ["running", "running"]

    gate.open()
    await first.hears("First.")
    await second.hears("Second.")


async def test_no_more_turns_run_at_once_than_allowed(a_world: Worlds) -> None:
    async with a_world({"MAX_CONCURRENT_TURNS": "1"}) as world:
        first, second = await world.maria.opens_issue("One"), await world.maria.opens_issue("Two")
        gate = world.gate()
        await first.says(f"@threadtree-bot wait {gate}\nsay First.")
        await first.sees_working()
        await second.says("@threadtree-bot say Second.")
        await second.sees("Queued.")
        # The command is answered after it, so the turn could have been claimed.
        await second.says("/status")
        await second.hears(
            "A request waits. This starts when",
            "has room. It works on 1 request, 1 of this repository.",
            "Queued: [maria's request](",
        )
        assert await world.turns("state") == ["running", "queued"]

        gate.open()
        await first.hears("First.")
        await second.hears("Second.")


async def test_a_turn_without_an_agent_takes_no_agents_place(a_world: Worlds) -> None:
    async with a_world({"MAX_CONCURRENT_TURNS": "1", "MAX_TURNS_PER_PERSON_PER_DAY": "2"}) as world:
        first, second = await world.maria.opens_issue("One"), await world.maria.opens_issue("Two")
        await second.says("@threadtree-bot write a.txt: a")
        await second.hears("1 file +1 −0")
        gate = world.gate()
        await first.says(f"@threadtree-bot wait {gate}\nsay First.")
        await first.sees_working()

        for command, words in {
            "/pr": "/pull/3",
            "/undo": "1 file +0 −1",
            "/reset": "The worktree was reset.",
            "/worktree remove": "The worktree was removed",
        }.items():
            await second.says(command)
            await second.hears(words)

        gate.open()
        await first.hears("First.")


async def test_a_later_comment_does_not_overtake_a_slow_decision(world: World) -> None:
    issue = await world.maria.opens_issue("Weather")
    world.faults.add(FailBefore(502), path="/repositories/*/collaborators/*/permission", times=5)
    await issue.says("@threadtree-bot append log.txt: 1")
    await issue.says("@threadtree-bot append log.txt: 2")

    await issue.hears("+1 −0")
    await issue.hears("+1 −0")

    assert (await world.files("threadtree/issue-1"))["log.txt"] == "1\n2"
