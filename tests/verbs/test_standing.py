"""What a repository's file asks again and again: `[[standing]]`."""

from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import pytest
from pydantic import SecretStr

from bot.cli.config import shown_rules
from bot.serve.parts import node_context
from bot.simulated.github.faults import FailAfter, FailBefore
from bot.simulated.github.model import Issue
from tests.end_to_end.conftest import Worlds
from tests.support.world import Talk, World

FILE = ".threadtree/config.toml"
HOUR = 3600
TOKEN = "t" * 32
SETTINGS = {"SWEEP_INTERVAL_SECONDS": "1", "AUTO_PULL_REQUEST": "ready"}


def entry(ask: str, every: str = "day 06:00", person: str = "maria", more: str = "") -> str:
    return f'[[standing]]\nevery = "{every}"\nask = "{ask}"\nas = "{person}"\n{more}\n'


@pytest.fixture
async def world(a_world: Worlds) -> AsyncIterator[World]:
    async with a_world(SETTINGS) as world:
        yield world


async def has(world: World, *entries: str) -> None:
    """Let the default branch have the file, at ten in the morning, and the bot read it."""
    if not world.repository.threads:
        first = await world.maria.opens_issue("Hello", "@threadtree-bot hello")
        await first.hears()
    await world.quiet()
    now = world.clock()
    at = now.replace(hour=10, minute=0, second=0, microsecond=0)
    world.clock.move((at - now + timedelta(days=1)).total_seconds())
    await world.maria.pushes("main", {FILE: "".join(entries)})
    world.clock.move(2 * HOUR)
    there = sum(one.startswith("[[") for one in entries)
    paused = str("standing_paused" in entries[0]).lower()
    await world.until(f"count(*) = {there} and bool_and((due_at is null) = {paused}) from standing")


async def a_day(world: World, days: int = 1) -> None:
    """Let this time pass, until what was due is decided and nothing is left to do."""
    world.clock.move(days * 24 * HOUR)
    await world.until(f"not exists (select from standing where due_at <= '{world.clock().isoformat()}')")
    await world.quiet()


def opened(world: World) -> list[Issue]:
    """Return the issues that the bot opened, the oldest first."""
    return [one for one in world.repository.threads.values() if "threadtree-standing" in [x.name for x in one.labels]]


def thread(world: World, number: int = -1) -> Talk:
    """Return one of these issues as a thread."""
    issue = opened(world)[number]
    known = next((talk for talk in world.talks if talk.thread is issue), None)
    return known or world.listen(issue, world.maria)


async def test_a_week_asks_posts_and_pays_each_day_once(world: World) -> None:
    await has(world, entry("write deps.txt: newer\\ncost 0.25", more="max_open = 2"))
    [row] = await world.database.fetch("select entry, due_at, first_seen_at from standing")
    assert (row["due_at"].hour, row["due_at"] - row["first_seen_at"] < timedelta(days=1)) == (6, True)

    await a_day(world)
    issue = thread(world)
    sha = (await world.repository.git.run("log", "-1", "--format=%H", "main", "--", FILE)).strip()
    assert f"/acme/shop/blob/{sha}/{FILE}#L1)" in (issue.thread.body or "")
    await issue.hears("**Changed**", "by itself, after [maria's request]", "[Pull request #3]")
    assert issue.opening.reactions == ["👀"]
    await a_day(world)
    assert len(opened(world)) == 2, "the first one has an open pull request"
    await thread(world).hears("[Pull request #5]")
    await a_day(world)
    assert len(opened(world)) == 2, "two pull requests are open"

    await world.maria.person.merge(world.repository.pulls[0])
    await world.maria.person.merge(world.repository.pulls[1])
    await world.quiet()
    await a_day(world, 4)
    assert len(opened(world)) == 3, "what was missed is asked once"
    await thread(world).hears()
    turns = await world.turns("verb", "state", "requested_by", "cost_usd")
    assert turns[1:] == [("work", "done", "maria", 0.25)] * 3
    assert await world.database.fetchval("select count(*) from deliveries where event = 'standing'") == 3

    await world.maria.pushes("main", {FILE: "agent = 'custom'\n"})
    await a_day(world)
    assert len(opened(world)) == 3
    assert await world.database.fetchval("select count(*) from standing") == 0


async def test_three_failures_pause_it_and_a_retry_that_is_done_starts_it_again(
    a_world: Worlds, database_url: str
) -> None:
    async with a_world({**SETTINGS, "TURN_TIMEOUT_SECONDS": "4", "ADMIN_TOKEN": TOKEN}) as world:
        gate = world.gate()
        await has(world, entry(f"wait {gate}"))
        for _ in range(3):
            await a_day(world)
        issue = thread(world)
        *_, said = await issue.hears_all()
        assert said.startswith("This standing request is paused: its last three requests failed. ")
        await a_day(world, 3)
        assert not issue.unread
        settings = world.pair.settings.model_copy(update={"database_url": SecretStr(database_url)})
        async with node_context(settings, database_url) as ctx:
            [shown] = (await shown_rules(ctx, settings, "acme/shop")).standing
        assert (shown.next, shown.conversation, shown.problem) == (
            None,
            "acme/shop#2",
            "its last three requests failed",
        )

        async with httpx.AsyncClient(base_url=world.pair.url, follow_redirects=True) as browser:
            page = (await browser.post("/login", data={"token": TOKEN})).text
        _, _, told = page.partition("Standing requests</h2>")
        assert 'paused<span class="sub">its last three requests failed</span>' in told

        gate.open()
        await issue.says("/retry")
        await issue.hears("I have read your request")
        await a_day(world)
        await issue.hears("I have read your request")
        assert len(opened(world)) == 1


async def test_a_person_who_may_not_ask_is_named_once_until_they_may(world: World) -> None:
    world.repository.allow(world.someone("zoe").user, "write")
    await has(world, entry("write a.txt: a", person="zoe"), entry("write b.txt: b", person="nobody-at-all"))
    world.repository.allow(world.someone("zoe").user, "read")
    await a_day(world)
    said = sorted([await thread(world, number).hears("This standing request is paused: ") for number in (0, 1)])
    assert "GitHub has no account `nobody-at-all`." in said[0]
    assert "`zoe`, for whom it asks, may not ask: only people with write access can ask the bot here" in said[1]
    await a_day(world, 2)
    assert len(opened(world)) == 2

    world.repository.allow(world.someone("zoe").user, "write")
    await a_day(world)
    [again] = [number for number in (0, 1) if "a.txt" in opened(world)[number].title]
    await thread(world, again).hears("**Changed**", "[zoe's request]")


async def test_an_issue_whose_opening_got_no_answer_is_found_again(world: World) -> None:
    await has(world, entry("say Hello."))
    # What fails is tried again for a day, by the database's clock.
    await world.database.execute("alter table deliveries alter received_at set default now() + interval '9 days'")
    world.faults.add(FailAfter(502), method="POST", path="/repositories/*/issues")
    await a_day(world)
    await thread(world).hears("Hello.")
    assert len(opened(world)) == 1


async def test_a_paused_file_asks_nothing_and_no_time_is_made_up_for(world: World) -> None:
    await has(world, "standing_paused = true\n", entry("say Hello."))
    await a_day(world)
    await has(world, entry("say Hello."))
    assert not opened(world)
    # What the file says counts when the time is decided, whatever was read before.
    await world.maria.pushes("main", {FILE: "setup = false\n"})
    await world.database.execute("update codebases set looked_at = now() + interval '1 year'")
    await a_day(world)
    assert not opened(world)
    assert await world.database.fetchval("select state from deliveries where event = 'standing'") == "done"


async def test_a_repository_without_issues_is_told_to_the_operator(world: World) -> None:
    await has(world, entry("say Hello."))
    world.faults.add(FailBefore(410, "Issues are disabled for this repo"), method="POST", path="/repositories/*/issues")
    await a_day(world)
    problem = await world.database.fetchval("select problem from standing")
    assert problem == "GitHub opens no issue for it: Issues are disabled for this repo"
