"""Permission to ask: live write permission and the allow lists, checked at decide and before the agent starts."""

import pytest

from bot.simulated.github.faults import FailBefore
from bot.simulated.github.server import SimulatedGitHub
from tests.end_to_end.conftest import Worlds
from tests.support.world import World

MEMBERSHIP = "/orgs/acme/teams/web/memberships/*"
PERMISSION = "/repositories/*/collaborators/*/permission"


async def test_an_outsider_hears_once_why_and_then_only_gets_a_confused_face(world: World) -> None:
    issue = await world.maria.opens_issue("For everybody")
    said = await issue.says("@threadtree-bot write x.txt: x", by=world.olaf)
    await issue.hears("Nothing was done for `olaf`: only people with write access can ask the bot here")
    await said.gets("😕")

    other = await world.olaf.opens_issue("Again", "@threadtree-bot say hello")
    await other.opening.gets("😕")
    await world.quiet()
    assert (said.reactions, await world.turns(), other.from_bot) == (["😕"], [], [])


async def test_permission_below_write_is_not_enough(world: World) -> None:
    world.repository.allow(world.olaf.user, "triage")
    issue = await world.olaf.opens_issue("Mine", "@threadtree-bot say hello")

    await issue.opening.gets("😕")
    await issue.hears("the permission is triage")
    assert await world.turns() == []


async def test_an_outsider_cannot_use_commands(world: World) -> None:
    issue = await world.maria.opens_issue("Busy")
    gate = world.gate()
    await issue.says(f"@threadtree-bot wait {gate}\nsay Finished.")
    await issue.sees_working()

    said = await issue.says("/stop all", by=world.olaf)
    await said.gets("😕")
    await issue.hears("Nothing was done for `olaf`")
    gate.open()

    await issue.hears("Finished.")


async def test_a_failed_permission_lookup_is_retried(world: World) -> None:
    world.faults.add(FailBefore(401), path=PERMISSION)
    world.faults.add(FailBefore(500), path=PERMISSION, times=6)
    issue = await world.maria.opens_issue("Bad weather", "@threadtree-bot say hello")

    await issue.hears("hello")
    assert await world.turns("state") == ["done"]


@pytest.mark.expects_errors
async def test_a_forbidden_permission_lookup_means_no_run(world: World) -> None:
    # It may pass: it is asked for some seconds.
    world.faults.add(FailBefore(403), path=PERMISSION, times=None)
    issue = await world.maria.opens_issue("No answer", "@threadtree-bot say hello")

    await issue.hears("The bot could not handle this")

    await issue.opening.gets("😕")
    assert issue.opening.reactions == ["😕"]
    assert await world.turns() == []


async def test_a_request_is_refused_if_its_permission_is_revoked_while_it_waits(world: World) -> None:
    world.repository.allow(world.olaf.user, "write")
    issue = await world.maria.opens_issue("Waiting")
    gate = world.gate()
    await issue.says(f"@threadtree-bot wait {gate}\nsay Finished.")
    await issue.sees_working()
    await issue.says("@threadtree-bot write x.txt: x", by=world.olaf)
    await issue.sees("Queued. One request is ahead")

    world.repository.allow(world.olaf.user, "none")
    gate.open()

    await issue.hears("Finished.")
    await issue.hears("**Not started:**", "`olaf` may not ask the bot here any more: only people with write access")
    assert await world.turns("state") == ["done", "refused"]


async def test_an_allowed_bot_is_answered(a_world: Worlds) -> None:
    def renovate_is_allowed(github: SimulatedGitHub) -> dict[str, str]:
        return {"ALLOWED_BOTS": str(github.world.user("renovate[bot]", "Bot").id)}

    async with a_world(renovate_is_allowed) as world:
        issue = await world.maria.opens_issue("Updates")
        await issue.says("@threadtree-bot say hello", by=world.someone("renovate[bot]", "Bot"))
        await issue.hears("hello")
        other = await issue.says("@threadtree-bot say hello", by=world.someone("other[bot]", "Bot"))
        await world.quiet()
        assert other.reactions == []


async def test_two_bots_that_answer_each_other_end_after_one_note(a_world: Worlds) -> None:
    def the_other_is_allowed(github: SimulatedGitHub) -> dict[str, str]:
        return {"ALLOWED_BOTS": str(github.world.user("other[bot]", "Bot").id), "MAX_COMMENTS_PER_HOUR": "3"}

    async with a_world(the_other_is_allowed) as world:
        issue = await world.maria.opens_issue("Ping", "@threadtree-bot say hello")
        other, said = world.someone("other[bot]", "Bot"), issue.opening
        heard: list[str] = []
        while new := await issue.hears_all():
            assert len(heard) < 10, "they go on and on"
            heard += new
            said = await issue.says("@threadtree-bot say hello, and thank you", by=other)
        assert [text.partition(".")[0] for text in heard[3:]] == [
            "The bot has written 3 comments here within an hour, which is its limit (`MAX_COMMENTS_PER_HOUR`)"
        ]
        assert said.reactions == ["😕"]
        assert (await world.turns("state"))[:3] == ["done"] * 3
        silent = [await issue.says(text) for text in ("@threadtree-bot say lost?", "/status", "/stop")]
        await world.quiet()
        assert [one.reactions for one in silent] == [["😕"], ["😕"], ["👀", "😕"]]
        assert set((await world.turns("state"))[3:]) == {"refused"}

        world.clock.move(3601)
        await issue.says("/retry")
        await issue.hears("lost?")


async def test_at_the_limit_what_runs_is_answered_and_can_be_stopped(a_world: Worlds) -> None:
    async with a_world({"MAX_COMMENTS_PER_HOUR": "2"}) as world:
        issue = await world.maria.opens_issue("Busy")
        gate = world.gate()
        await issue.says(f"@threadtree-bot wait {gate}\nsay The first.")
        await issue.sees_working()
        await issue.says("@threadtree-bot say The second.")
        await issue.sees("Queued. One request is ahead")
        await issue.says("@threadtree-bot say The third.")
        await issue.hears("The bot has written 2 comments here within an hour")
        gate.open()
        await issue.hears("The first.")
        await issue.hears("The second.")
        assert await world.turns("state") == ["done", "done", "refused"]


async def test_only_allowed_repositories_are_served(a_world: Worlds) -> None:
    async with a_world({"ALLOWED_REPOS": "acme/sh*"}) as world:
        elsewhere = await world.github.create_repository("acme/bank")
        elsewhere.allow(world.maria.user, "write")
        refused = await world.maria.opens_issue("Here?", "@threadtree-bot say hello", repository=elsewhere)
        served = await world.maria.opens_issue("Here!", "@threadtree-bot say hello")

        await served.hears("hello")
        await refused.opening.gets("😕")
        await refused.hears("the bot is not set up to work in this repository")
        assert len(await world.turns()) == 1


async def test_a_team_is_served_until_somebody_leaves_it(a_world: Worlds) -> None:
    async with a_world({"ALLOWED_USERS": "maria,acme/web"}) as world:
        for person in (world.olaf, world.someone("wanda")):
            world.repository.allow(person.user, "write")
        world.github.put_in_team("acme/web", "olaf")
        issue = await world.olaf.opens_issue("Ours", "@threadtree-bot say hello")
        await issue.hears("hello")
        stranger = await issue.says("@threadtree-bot say hello", by=world.someone("wanda"))
        await stranger.gets("😕")
        await issue.hears("Nothing was done for `wanda`: the bot is set up to work only for certain people")

        gate = world.gate()
        await issue.says(f"@threadtree-bot wait {gate}\nsay Finished.", by=world.maria)
        await issue.sees_working()
        await issue.says("@threadtree-bot write x.txt: x")
        await issue.sees("Queued. One request is ahead")
        world.github.put_in_team("acme/web")
        gate.open()

        await issue.hears("Finished.")
        await issue.hears(
            "**Not started:**", "`olaf` may not ask the bot here any more: the bot is set up to work only"
        )
        assert await world.turns("state") == ["done", "done", "refused"]


async def test_a_team_that_github_cannot_tell_lets_nobody_in(a_world: Worlds) -> None:
    async with a_world({"ALLOWED_USERS": "acme/web"}) as world:
        world.github.put_in_team("acme/web", "maria")
        world.faults.add(FailBefore(500), path=MEMBERSHIP, times=6)
        issue = await world.maria.opens_issue("Bad weather", "@threadtree-bot say hello")
        await issue.hears("hello")

        world.faults.add(FailBefore(403), path=MEMBERSHIP)
        await (await issue.says("@threadtree-bot say again")).gets("😕")
        await issue.hears("only for certain people")
        assert await world.turns("state") == ["done"]


async def test_a_person_over_the_daily_limit_is_refused_with_its_name(a_world: Worlds) -> None:
    async with a_world({"MAX_TURNS_PER_PERSON_PER_DAY": "1"}) as world:
        issue = await world.maria.opens_issue("Greedy", "@threadtree-bot say one")
        await issue.hears("one")
        await issue.says("@threadtree-bot say two")

        await issue.hears("**Not started:**", "`MAX_TURNS_PER_PERSON_PER_DAY`")
        assert await world.turns("state") == ["done", "refused"]
