"""What was said while nothing listened is fetched from GitHub's log, or read on the threads."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import pytest

from bot.github import client
from bot.github.client import GitHub
from bot.inbox import acts, recover
from bot.serve import worker
from bot.simulated.github import graphql
from bot.simulated.github.faults import FailBefore, PrimaryRateLimit
from bot.simulated.github.model import Repository
from bot.simulated.github.server import SimulatedGitHub
from bot.store.database import Pool
from bot.thread.authority import Policy
from tests.end_to_end.conftest import Worlds
from tests.support.world import Talk, World

DEAD = "http://127.0.0.1:9/webhooks/github"
OFTEN = {"RECOVER_INTERVAL_SECONDS": "0.3"}


@dataclass
class Outage:
    """The webhook leads nowhere until the block ends. Then it is edited, or deleted and made anew."""

    world: World
    made_anew: bool = False

    async def __aenter__(self) -> None:
        await self.world.quiet()
        self.world.github.set_webhook(DEAD, "x")

    async def __aexit__(self, *_: object) -> None:
        await self.world.github.settled()
        pair = self.world.pair
        secret = pair.settings.webhook_secrets[0].decode()
        self.world.github.set_webhook(f"{pair.url}/webhooks/github", secret, anew=self.made_anew)


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


@pytest.mark.parametrize("way", ["app", "hooks", "threads"])
async def test_requests_missed_in_an_outage_are_run_once(
    a_world: Worlds, way: Literal["app", "hooks", "threads"]
) -> None:
    more = {"installation_id": 77} if way == "app" else {}
    async with a_world(as_app if way == "app" else OFTEN, **more) as world:
        if way == "hooks":
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


async def test_a_round_that_github_refuses_is_tried_again_and_a_flood_holds_up_nothing(
    a_world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acts, "MOST_CHANGED", 2)
    async with a_world(OFTEN) as world:
        known = await world.maria.opens_issue("Known", "@threadtree-bot say First.")
        await known.hears("First.")
        for number in range(7):
            world.clock.move(1)  # GitHub's times are whole seconds
            await known.says(f"flood {number}", by=world.olaf)
        async with Outage(world):
            world.faults.add(PrimaryRateLimit(60), path="*/issues/comments", times=2)
            world.clock.move(1)
            await known.says("@threadtree-bot say Missed.")
        await known.hears("Missed.")


async def test_every_kind_of_request_and_a_close_are_found_on_the_threads(a_world: Worlds) -> None:
    async with a_world(OFTEN) as world:
        bot, asks = world.github.bot, "@threadtree-bot help"
        known = await world.maria.opens_issue("Known", asks)
        await known.hears("/status")
        labelled = await world.maria.opens_issue("Labelled", "say Labelled.")
        assigned = await world.maria.opens_issue("Assigned", "say Assigned.")
        edited = await world.maria.opens_issue("Edited", "Nothing for the bot.")
        remark = await known.says("Nothing for the bot.", by=world.olaf)
        await world.maria.pushes("topic", {"topic.txt": "topic\n"})
        pull = await world.maria.opens_pull("Topic", head="topic")
        # A thread of the bot's own, which a person closes.
        own = await world.someone(bot.login).opens_issue("The bot's own")
        await own.says(asks, by=world.maria)
        await own.hears("/status")
        sent = {delivery.guid for delivery in world.github.deliveries}
        async with Outage(world):
            await world.maria.person.label(labelled.thread, "threadtree")
            await world.maria.person.label(labelled.thread, "bug")
            await world.maria.person.assign(assigned.thread, bot)
            await world.olaf.person.label(edited.thread, "threadtree")
            await world.maria.person.edit(edited.thread, asks)
            await world.maria.person.edit(remark.comment, asks)  # on maria's authority, for she wrote it
            await pull.reviews(asks, ("topic.txt", 1, "Nothing for the bot."))
            await world.maria.person.request_review(pull.pull, bot)
            await own.closes(by=world.maria)
        await labelled.hears("Labelled.")
        await assigned.hears("Assigned.")
        for talk in (known, pull):
            await talk.hears("/status")
        await edited.sees("/status")
        await world.until("(select count(*) = 1 from conversations where state = 'closed')")
        await edited.sees("Nothing was done for `olaf`")  # of his label
        await edited.hears_all()
        # What GitHub sends late is known by its effect.
        missed = {delivery.guid for delivery in world.github.deliveries} - sent
        for guid in missed:
            await world.github.redeliver(guid)
        await world.quiet()
        rows = await world.database.fetchval("select count(*) from deliveries where guid = any ($1)", list(missed))
        assert rows >= 8
        await pull.reviewed()
        assert sorted(await world.turns("state", "mode")) == [("done", "review"), *[("done", "work")] * 2]


async def test_an_edit_within_the_second_of_the_writing_is_its_editors(a_world: Worlds) -> None:
    async with a_world(OFTEN) as world:
        known = await world.maria.opens_issue("Known", "@threadtree-bot help")
        await known.hears("/status")
        async with Outage(world):
            world.clock.move(1 - world.clock().microsecond / 1e6)  # GitHub's times are whole seconds
            remark = await known.says("Nothing for the bot.", by=world.olaf)
            await world.maria.person.edit(remark.comment, "@threadtree-bot help")
        await known.hears("/status")
        await world.quiet()


async def test_an_edit_is_found_after_a_label_got_its_reaction(a_world: Worlds) -> None:
    async with a_world(OFTEN) as world:
        asks = "@threadtree-bot help"
        known = await world.maria.opens_issue("Known", asks)
        await known.hears("/status")
        edited = await world.maria.opens_issue("Edited", "Nothing for the bot.")
        answered = await world.maria.opens_issue("Answered", asks)
        await answered.hears("/status")
        async with Outage(world):
            await world.olaf.person.label(edited.thread, "threadtree")
            await edited.hears("Nothing was done for `olaf`")
            await world.maria.person.edit(edited.thread, asks)
            # What it asked before is not known.
            await world.maria.person.edit(answered.thread, f"{asks}, please")
        await edited.hears("/status")
        await world.quiet()


async def test_what_no_log_tells_any_more_is_found(a_world: Worlds) -> None:
    async with a_world(OFTEN) as world:
        world.repository.allow(world.github.bot, "admin")
        forgotten = await world.maria.opens_issue("Forgotten", "@threadtree-bot say First.")
        await forgotten.hears("First.")
        await world.until("exists (select from recoveries where problem is null)")
        world.faults.add(FailBefore(502), path="/repos/acme/shop/hooks", times=None)
        async with Outage(world, made_anew=True):
            await forgotten.says("@threadtree-bot say Second.")
            world.clock.move(2)  # GitHub's times are whole seconds
        world.faults.clear()
        await forgotten.hears("Second.")
        await world.quiet()
        async with Outage(world):
            await forgotten.closes()
            await world.database.execute("update recoveries set seen_until = now() + interval '1 day'")
            await world.database.execute("update conversations set updated_at = now() - interval '5 days'")
        await world.until("(select bool_and(state = 'removed') from worktrees)")


async def test_a_log_longer_than_a_round_may_read_is_read_on(a_world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PER_PAGE", 5)
    monkeypatch.setattr(recover, "MOST_PAGES", 2)
    monkeypatch.setattr(recover, "MOST_FETCHED", 10)
    async with a_world(as_app, installation_id=77) as world:
        known = await with_a_request(world)
        async with Outage(world):
            world.faults.add(FailBefore(502), path="/app/hook/deliveries", times=None)
            await known.says("@threadtree-bot say Second.")
            for number in range(30):
                await known.says(f"others talk {number}", by=world.olaf)
            await known.says("@threadtree-bot say Third.")
        world.faults.clear()
        # It says what it has not compared yet.
        await world.until("exists (select from recoveries where problem like '%log is long%')")
        await known.hears("Second.")
        await known.hears("Third.")
        await world.until("exists (select from recoveries where problem is null and log_cursor is null)")


@pytest.mark.parametrize("status", [404, 422, 500])
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


async def test_an_app_whose_log_is_too_short_reads_the_threads(a_world: Worlds) -> None:
    async with a_world(as_app, installation_id=77) as world:
        known = await with_a_request(world)
        async with Outage(world):
            world.faults.add(FailBefore(502), path="/app/hook/deliveries", times=None)
            await known.says("@threadtree-bot say Missed.")
        world.github.deliveries.clear()
        # A comparison that began before that could still read the empty log as a whole one, and note that at its end.
        await world.until(f"exists (select from recoveries where tried_at > '{world.clock().isoformat()}')")
        await world.database.execute("update recoveries set compared_at = now() - interval '4 days'")
        world.faults.clear()
        await known.hears("Missed.")
        await world.until(
            "exists (select from recoveries where problem is null and compared_at > now() - interval '1 day')"
        )


@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize("way", ["app", "threads"])
async def test_a_wrong_clock_of_this_machine_hides_nothing(
    a_world: Worlds, monkeypatch: pytest.MonkeyPatch, way: str, hours: int
) -> None:
    async def skewed(pool: Pool, github: GitHub, platform: str, policy: Policy, now: datetime) -> object:
        return await recover.recover(pool, github, platform, policy, now + timedelta(hours=hours))

    monkeypatch.setattr(worker, "recover", skewed)
    more = {"installation_id": 77} if way == "app" else {}
    async with a_world(as_app if way == "app" else OFTEN, **more) as world:
        known = await with_a_request(world)
        async with Outage(world):
            await known.says("@threadtree-bot say Missed.")
        await known.hears("Missed.")


async def test_a_thread_that_graphql_does_not_show_holds_up_nothing(
    a_world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = graphql._Resolvers._node_in

    def one_is_hidden(resolvers: graphql._Resolvers, repository: Repository, wanted: str) -> object:
        return None if wanted == hidden.thread.node_id else shown(resolvers, repository, wanted)

    async with a_world(OFTEN) as world:
        known = await with_a_request(world)
        hidden = await world.maria.opens_issue("Not shown", "Nothing for the bot.")
        monkeypatch.setattr(graphql._Resolvers, "_node_in", one_is_hidden)
        async with Outage(world):
            await known.says("@threadtree-bot say Missed.")
            # Whether it was edited is not known: it is nobody's request.
            await world.maria.person.edit(hidden.thread, "@threadtree-bot say Wrong.")
        await known.hears("Missed.")
        await world.quiet()
