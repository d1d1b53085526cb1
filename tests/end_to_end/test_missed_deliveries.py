"""What was said while nothing listened is fetched from GitHub's log of deliveries."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import pytest
from structlog.testing import capture_logs

from bot.github import client
from bot.github.client import GitHub
from bot.inbox import recover
from bot.serve import worker
from bot.simulated.github.faults import FailBefore, PrimaryRateLimit
from bot.simulated.github.server import SimulatedGitHub
from bot.store.database import Pool
from tests.end_to_end.conftest import Worlds
from tests.support.patience import until_true
from tests.support.world import Talk, World

DEAD = "http://127.0.0.1:9/webhooks/github"
OFTEN = {"RECOVER_INTERVAL_SECONDS": "0.3"}


@dataclass
class Outage:
    """The webhook leads nowhere until the block ends."""

    world: World

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


def as_app(github: SimulatedGitHub) -> dict[str, str]:
    return {**OFTEN, "GITHUB_APP_ID": str(github.app_id), "GITHUB_PRIVATE_KEY": github.app_private_key_pem}


async def with_a_request(world: World) -> Talk:
    known = await world.maria.opens_issue("Known", "@threadtree-bot say First.")
    await known.hears("First.")
    await world.until("exists (select from recoveries where compared_at is not null)")
    return known


@pytest.mark.parametrize("way", ["app", "hooks"])
async def test_requests_missed_in_an_outage_are_run_once(a_world: Worlds, way: Literal["app", "hooks"]) -> None:
    more = {"installation_id": 77} if way == "app" else {}
    async with a_world(as_app if way == "app" else OFTEN, **more) as world:
        world.repository.allow(world.github.bot, "admin")
        known = await world.maria.opens_issue("Known", "@threadtree-bot say First.")
        await known.hears("First.")
        closed = await world.maria.opens_issue("To be closed", "@threadtree-bot say Second.")
        await closed.hears("Second.")
        await world.quiet()  # a delivery may be found out to be ignored
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
        path = {"app": "/app/hook/deliveries", "hooks": f"/repositories/{world.repository.id}/hooks"}[way]
        rounds = len(world.github.requests)
        await world.github.wait_for(
            lambda: sum(one.path == path and one.method == "GET" for one in world.github.requests[rounds:]) > 1
        )
        await world.quiet()
        missed = (await guids(world))[len(before) :]
        assert len(missed) == 4, missed
        assert set(missed) <= {delivery.guid for delivery in world.github.deliveries}
        assert await world.turns("state") == ["done"] * 4
        assert await world.database.fetchval("select max(problem) from recoveries") is None


async def test_what_was_missed_is_not_guessed_from_the_threads_and_runs_once_the_log_may_be_read(
    a_world: Worlds,
) -> None:
    async with a_world(OFTEN) as world:
        known = await world.maria.opens_issue("Known", "@threadtree-bot say First.")
        await known.hears("First.")
        async with Outage(world):
            await known.says("@threadtree-bot say Missed.")
        told = world.clock()
        await world.until(f"exists (select from recoveries where tried_at > '{told.isoformat()}')")
        await world.quiet()
        [source] = await world.database.fetch("select problem, compared_at from recoveries")
        assert "may not read the repository's webhooks" in source["problem"]
        assert source["problem"].endswith("missed deliveries stay missed")
        assert source["compared_at"] is None
        assert await world.turns("state") == ["done"]
        world.repository.allow(world.github.bot, "admin")
        await known.hears("Missed.")


async def test_a_round_that_github_refuses_is_tried_again(a_world: Worlds) -> None:
    async with a_world(OFTEN) as world:
        world.repository.allow(world.github.bot, "admin")
        known = await with_a_request(world)
        async with Outage(world):
            world.faults.add(PrimaryRateLimit(60), path="*/hooks/*/deliveries", times=1)
            world.clock.move(1)
            await known.says("@threadtree-bot say Missed.")
        await world.until("exists (select from recoveries where problem like '%rate limit%')")
        asked = len([one for one in world.github.requests if "/hooks" in one.path])
        await known.says("/status")
        await known.hears("Idle.")
        assert len([one for one in world.github.requests if "/hooks" in one.path]) == asked, "the limit is obeyed"
        world.clock.move(70)
        await known.hears("Missed.")


async def test_a_log_longer_than_a_round_may_read_is_read_on(a_world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PER_PAGE", 5)
    monkeypatch.setattr(client, "PER_FIRST_PAGE", 5)
    monkeypatch.setattr(recover, "MOST_PAGES", 2)
    monkeypatch.setattr(recover, "MOST_FETCHED", 10)
    async with a_world(as_app, installation_id=77) as world:
        known = await with_a_request(world)
        async with Outage(world):
            world.faults.add(FailBefore(502), path="/app/hook/deliveries", times=None)
            await known.says("@threadtree-bot say Second.")
            for number in range(12):
                await known.says(f"others talk {number}", by=world.olaf)
            await known.says("@threadtree-bot say Third.")
        world.faults.clear()
        # It says what it has not compared yet.
        await world.until("exists (select from recoveries where problem like '%log is long%')")
        await known.hears("Second.")
        await known.hears("Third.")
        await world.until("exists (select from recoveries where problem is null and log_cursor is null)")


@pytest.mark.parametrize("status", [404, 500])
async def test_a_delivery_that_github_does_not_show_holds_up_nothing(a_world: Worlds, status: int) -> None:
    async with a_world(as_app, installation_id=77) as world:
        known = await with_a_request(world)
        async with Outage(world):
            # The rounds begin at once: held back until all are in the log.
            world.faults.add(FailBefore(503), path="/app/hook/deliveries", times=None)
            await known.says("nothing for the bot", by=world.olaf)
            await known.says("@threadtree-bot say Missed.")
        first = min(one.id for one in world.github.deliveries if one.status_code != 202)
        world.faults.clear()
        world.faults.add(FailBefore(status), path=f"/app/hook/deliveries/{first}", times=None)
        await known.hears("Missed.")
        left = "(select count(*) from missed_deliveries)"
        await world.until(f"{left} = {int(status == 500)}")
        world.faults.clear()
        await world.until(f"{left} = 0")


async def test_a_log_that_does_not_reach_back_far_enough_is_told(a_world: Worlds) -> None:
    async with a_world(as_app, installation_id=77) as world:
        known = await with_a_request(world)
        async with Outage(world):
            world.faults.add(FailBefore(502), path="/app/hook/deliveries", times=None)
            await known.says("@threadtree-bot say Forgotten.")
            await world.github.settled()
            world.github.deliveries.clear()
            await known.says("@threadtree-bot say Missed.")
        await world.database.execute("update recoveries set compared_at = now() - interval '4 days'")
        # A comparison that began before that knows nothing of it.
        await world.until(f"exists (select from recoveries where tried_at > '{world.clock().isoformat()}')")
        with capture_logs() as logs:
            world.faults.clear()
            await known.hears("Missed.")
            # It is logged after it is written.
            await until_true(lambda: any(log["event"] == "deliveries-recovered" and log["problem"] for log in logs))
        problems = [log["problem"] for log in logs if log["event"] == "deliveries-recovered" and log["problem"]]
        assert "nothing listened for longer than GitHub keeps its log: older missed deliveries stay missed" in problems


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_wrong_clock_of_this_machine_hides_nothing(
    a_world: Worlds, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    def skewed(pool: Pool, github: GitHub, platform: str, clock: Callable[[], datetime], *more: Any, **how: Any) -> Any:
        return recover.Recovery(pool, github, platform, lambda: clock() + timedelta(hours=hours), *more, **how)

    monkeypatch.setattr(worker, "Recovery", skewed)
    async with a_world(as_app, installation_id=77) as world:
        known = await with_a_request(world)
        async with Outage(world):
            await known.says("@threadtree-bot say Missed.")
        await known.hears("Missed.")
