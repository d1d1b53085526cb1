"""Each text of the bot appears once and complete, even if GitHub fails requests."""

import pytest

from bot.simulated.github.faults import DropAfter, DropBefore, FailAfter, FailBefore, Fault, SecondaryRateLimit
from tests.support.world import World

COMMENTS = "/repos/acme/shop/issues/1/comments"
FAULTS = [FailBefore(502), FailAfter(502), DropBefore(), DropAfter()]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
async def test_a_tracking_comment_appears_exactly_once_after_a_failed_request(world: World, fault: Fault) -> None:
    issue = await world.maria.opens_issue("Weather")
    world.faults.add(fault, method="POST", path=COMMENTS)
    await issue.says("@threadtree-bot say through")

    await issue.hears("through")

    await world.quiet()
    assert len(issue.from_bot) == 1


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
async def test_a_commands_answer_appears_exactly_once_after_a_failed_request(world: World, fault: Fault) -> None:
    issue = await world.maria.opens_issue("Weather")
    world.faults.add(fault, method="POST", path=COMMENTS)
    await issue.says("/status")

    await issue.hears("Idle.")

    await world.quiet()
    assert len(issue.from_bot) == 1


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
async def test_an_answer_appears_after_a_failed_edit(world: World, fault: Fault) -> None:
    issue = await world.maria.opens_issue("Weather")
    gate = world.gate()
    await issue.says(f"@threadtree-bot wait {gate}\nsay through")
    await issue.sees_working()
    world.faults.add(fault, method="PATCH", path="/repos/acme/shop/issues/comments/*")
    gate.open()

    await issue.hears("through")

    await world.quiet()
    assert len(issue.from_bot) == 1


async def test_a_failed_reaction_is_retried(world: World) -> None:
    issue = await world.maria.opens_issue("Weather")
    world.faults.add(FailBefore(502), method="POST", path="*/reactions")
    said = await issue.says("@threadtree-bot say through")

    await issue.hears("through")
    await said.gets("👀")


@pytest.mark.parametrize("seconds", [10, 60])
async def test_everything_is_sent_after_a_secondary_limit(world: World, seconds: int) -> None:
    issue = await world.maria.opens_issue("Too much")
    world.faults.add(SecondaryRateLimit(retry_after=seconds), method="POST", path=COMMENTS)
    await issue.says("/status")
    if seconds > 20:  # the job does not sleep this long: housekeeping starts it again
        await world.until("exists (select from outbox where error is not null)")
        world.clock.move(seconds)

    await issue.hears("Idle.")
    limited, sent = [
        request for request in world.github.requests if (request.method, request.path) == ("POST", COMMENTS)
    ]
    assert (limited.status, sent.status) == (403, 201)
    assert (sent.at - limited.at).total_seconds() >= seconds


async def test_five_creating_requests_go_at_once_and_then_one_a_second(world: World) -> None:
    issue = await world.maria.opens_issue("Chatty")
    for _ in range(4):
        await issue.says("/status")
    for _ in range(4):
        await issue.hears("Idle.")

    times = [request.at for request in world.github.requests if (request.method, request.status) == ("POST", 201)]
    assert len(times) == 8, "a reaction and an answer each"
    for number in (5, 6, 7):
        assert all(
            (later - earlier).total_seconds() >= number - 4 - 0.01
            for earlier, later in zip(times, times[number:], strict=False)
        )


async def test_an_answer_longer_than_a_comment_continues_in_the_next(world: World) -> None:
    issue = await world.maria.opens_issue("A book")
    await issue.says("@threadtree-bot long 150000")

    heard = await issue.hears_all()

    assert len(heard) == 3
    assert all(len(text) <= 65_536 for text in heard)
    assert sum(text.count("x") for text in heard) >= 150_000
    assert "part=3" in heard[2]


async def test_the_answer_of_a_long_turn_is_a_new_comment_and_the_only_one(world: World) -> None:
    issue = await world.maria.opens_issue("Patience")
    gate = world.gate()
    await issue.says(f"@threadtree-bot wait {gate}\nsay At last.")
    await issue.sees_working()
    world.clock.move(61)
    gate.open()

    await issue.hears("At last.")
    await world.quiet()

    (answer,) = issue.from_bot
    assert answer.original.startswith("At last.")
    assert answer.edits == []


async def test_an_answer_appears_although_the_tracking_comment_was_deleted(world: World) -> None:
    issue = await world.maria.opens_issue("Tidy")
    gate = world.gate()
    await issue.says(f"@threadtree-bot wait {gate}\nsay Here it is.")
    await issue.sees_working()
    await world.maria.person.delete(issue.from_bot[0])
    gate.open()

    await issue.hears("Here it is.")
