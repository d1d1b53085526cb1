"""What was said while nothing listened is fetched from GitHub's log, or read on the threads."""

from typing import Literal

import pytest

from bot.simulated.github.faults import PrimaryRateLimit
from bot.simulated.github.server import SimulatedGitHub
from tests.end_to_end.conftest import Worlds
from tests.support.world import World

DEAD = "http://127.0.0.1:9/webhooks/github"
OFTEN = {"RECOVER_INTERVAL_SECONDS": "0.3"}


class Outage:
    """The webhook leads nowhere until the block ends."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def __aenter__(self) -> None:
        await self.world.quiet()
        self.world.github.set_webhook(DEAD, "x")

    async def __aexit__(self, *_: object) -> None:
        await self.world.github.settled()
        pair = self.world.pair
        secret = pair.settings.webhook_secrets[0].decode()
        self.world.github.set_webhook(f"{pair.url}/webhooks/github", secret)


async def guids(world: World) -> list[str]:
    rows = await world.database.fetch("select guid from deliveries where state <> 'ignored' order by seq")
    return [row["guid"] for row in rows]


@pytest.mark.parametrize("way", ["app", "hooks", "threads"])
async def test_requests_missed_in_an_outage_are_run_once(
    a_world: Worlds, way: Literal["app", "hooks", "threads"]
) -> None:
    def as_app(github: SimulatedGitHub) -> dict[str, str]:
        return {**OFTEN, "GITHUB_APP_ID": str(github.app_id), "GITHUB_PRIVATE_KEY": github.app_private_key_pem}

    more = {"installation_id": 77} if way == "app" else {}
    async with a_world(as_app if way == "app" else OFTEN, **more) as world:
        if way == "hooks":
            world.repository.allow(world.github.bot, "admin")
        known = await world.maria.opens_issue("Known", "@threadtree-bot say First.")
        await known.hears("First.")
        closed = await world.maria.opens_issue("To be closed", "@threadtree-bot say Second.")
        await closed.hears("Second.")
        before = await guids(world)
        async with Outage(world):
            await known.says("@threadtree-bot say Missed.")
            await known.says("nothing for the bot")
            fresh = await world.maria.opens_issue("New", "@threadtree-bot say Missed, too.")
            await closed.closes()
        await known.hears("Missed.")
        await fresh.hears("Missed, too.")
        await world.until("(select count(*) = 1 from conversations where state = 'closed')")
        # Round after round, nothing is done again.
        path = {"app": "/app/hook/deliveries", "hooks": "/repos/acme/shop/hooks", "threads": "/repos/acme/shop/issues"}
        rounds = len(world.github.requests)
        await world.github.wait_for(
            lambda: sum(one.path == path[way] and one.method == "GET" for one in world.github.requests[rounds:]) > 1
        )
        await world.quiet()
        sent = {delivery.guid for delivery in world.github.deliveries}
        missed = (await guids(world))[len(before) :]
        assert len(missed) == 3 + (way != "threads"), missed
        assert (set(missed) <= sent) == (way != "threads")
        assert await world.turns("state") == ["done"] * 4
        problem = await world.database.fetchval("select max(problem) from recoveries")
        assert (problem is not None) == (way == "threads")


async def test_a_round_that_github_refuses_is_tried_again(a_world: Worlds) -> None:
    async with a_world(OFTEN) as world:
        known = await world.maria.opens_issue("Known", "@threadtree-bot say First.")
        await known.hears("First.")
        async with Outage(world):
            world.faults.add(PrimaryRateLimit(60), path="*/issues/comments", times=2)
            await known.says("@threadtree-bot say Missed.")
        await known.hears("Missed.")
