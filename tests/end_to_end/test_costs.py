"""The caps on cost: before a turn, within one, on the day of all; a soft stop keeps the work."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bot.prompt import remarks
from bot.thread import notices
from bot.turn import caps
from tests.support.world import World, open_world

MOST_OF_A_STORY = timedelta(minutes=10)
YESTERDAY = (
    "update turns set finished_at = date_trunc('day', now(), 'UTC') - interval '1 s' where finished_at is not null"
)


@pytest.fixture
async def world(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    if (datetime.now(UTC) + MOST_OF_A_STORY).date() != datetime.now(UTC).date():
        pytest.skip("It is almost midnight (UTC): what is spent now may soon be of yesterday.")
    monkeypatch.setattr(caps, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(caps, "RECORD_EVERY_SECONDS", 0.01)
    limits = {
        "MAX_COST_USD_PER_TURN": "5",
        "MAX_COST_USD_PER_REPOSITORY_PER_DAY": "10",
        "MAX_COST_USD_PER_DAY": "12",
    }
    async with open_world(database_url, tmp_path, limits) as world:
        yield world


async def test_a_turn_that_reaches_its_limit_is_told_to_finish_and_its_work_is_pushed(world: World) -> None:
    issue = await world.maria.opens_issue("Spend much")
    await issue.says("@threadtree-bot write a.txt: one\ncost 5.50\nhang\nsay Never.")
    told = await issue.hears("The cost limit of $5.00 for one request was reached ($5.00)", "1 file +", "· $5.00 ·")
    assert "You were interrupted because the limit of what this request may cost is reached." in told
    assert "Never." not in told

    # This one does not listen, so it is ended: its work is pushed all the same.
    await issue.says("@threadtree-bot write b.txt: two\ncost 900000\nhang deaf")
    await issue.hears(notices.STOPPED_AT_COST_LIMIT, "was reached ($5.00)", "1 file +")
    files = await world.files((await world.branches())["threadtree/issue-1"])
    assert (files["a.txt"], files["b.txt"]) == ("one", "two")

    await issue.says("@threadtree-bot say Three.")
    limit = "The cost limit is reached: $10.00 of $10.00 for this repository today. It resets at 00:00 UTC."
    await issue.hears("**Not started:**", limit)
    assert await world.turns("state", "cost_usd") == [("done", 5), ("done", 5), ("refused", 0)]
    await world.database.execute(YESTERDAY)
    await issue.says("/retry")
    await issue.hears("Three.")


async def test_a_turn_is_told_to_finish_when_others_reach_the_limit_of_the_day(world: World) -> None:
    """Also one whose agent tells no cost, and one that waits for its model: that is not asked again."""
    issue, other = await world.maria.opens_issue("Wait"), await world.maria.opens_issue("Spend")
    waiting = await world.maria.opens_issue("Wait for the model")
    await waiting.says("@threadtree-bot write a.txt: one\ncost 1.00\nbusy 529")
    await waiting.sees("The agent's model takes no requests")
    await issue.says("@threadtree-bot write a.txt: one\nhang")
    await issue.sees("Edit a.txt")
    await other.says("@threadtree-bot cost 4.00\nsay Spent.")
    await other.hears("Spent.", "$4.00")
    await world.database.execute("update turns set cost_usd = 12.5 where cost_usd = 4")
    limit = "The cost limit of $10.00 for this repository today was reached ($13.50)"
    await issue.hears(limit, "Ask it to go on after 00:00 UTC, when it resets.", "1 file +")
    world.clock.move(700)
    await waiting.hears(limit, notices.STOPPED_AT_COST_LIMIT, "1 file +")


async def test_a_stop_wins_while_the_agent_finishes_and_it_has_little_time_for_that(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remarks, "FINISH_NOW", "write last.txt: words\nhang")
    issue = await world.maria.opens_issue("Spend much")
    await issue.says("@threadtree-bot write a.txt: one\ncost 5.50\nhang")
    await issue.sees("Edit last.txt")
    await issue.says("/stop")
    assert "**Stopped** by `maria`." in "".join(await issue.hears_all())
    assert list(await world.branches()) == ["main"]

    monkeypatch.setattr(caps, "FINISH_SECONDS", 1.0)
    await issue.says("@threadtree-bot cost 11.00\nhang")
    await issue.hears(notices.STOPPED_AT_COST_LIMIT, "**Changed**")
