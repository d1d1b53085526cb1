"""Slash commands: where they stand, and in which order they run."""

from tests.end_to_end.conftest import Worlds
from tests.support.world import World


async def test_where_a_command_needs_a_mention_a_bare_one_is_for_others(a_world: Worlds) -> None:
    async with a_world({"BARE_COMMANDS": "false"}) as world:
        issue = await world.maria.opens_issue("Quiet")
        bare = await issue.says("/help")
        await issue.says("@threadtree-bot say /status is text here\n\n/status")
        await issue.hears("/status is text here")
        await issue.says("@threadtree-bot /help")
        await issue.hears("A command follows a mention, such as `@threadtree-bot /status`:")
        assert bare.reactions == []
        assert "\n\n/status" in (await world.turns("text"))[0]


async def test_a_comment_runs_its_commands_in_order_and_then_one_turn_for_the_rest(world: World) -> None:
    issue = await world.maria.opens_issue("Both")
    await issue.says("@threadtree-bot remember blue")
    await issue.hears("blue")

    await issue.says("@threadtree-bot /reset-context\n/status\nrecall")

    await issue.hears("AI context reset.")
    await issue.hears("The next request starts a new conversation")
    await issue.hears("I remember: nothing.")
