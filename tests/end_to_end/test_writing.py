"""Each text of the bot appears once and complete, even if GitHub fails requests."""

from bot.simulated.github.faults import DropAfter, FailAfter, FailBefore, SecondaryRateLimit
from tests.support.world import World

COMMENTS = "/repositories/*/issues/1/comments"


async def test_each_text_appears_once_although_every_kind_of_write_fails_at_first(world: World) -> None:
    issue, gate = await world.maria.opens_issue("Weather"), world.gate()
    world.faults.add(DropAfter(), method="POST", path=COMMENTS)
    world.faults.add(FailBefore(502), method="POST", path="*/reactions")
    said = await issue.says(f"@threadtree-bot wait {gate}\nsay through")
    await issue.sees_working()

    world.faults.add(FailAfter(502), method="PATCH", path="/repositories/*/issues/comments/*")
    gate.open()
    await issue.hears("through")
    await said.gets("👀")

    world.faults.add(SecondaryRateLimit(retry_after=60), method="POST", path=COMMENTS)
    await issue.says("/status")
    # The job does not sleep this long: housekeeping starts it again.
    await world.until("exists (select from writers where held_until is not null)")
    world.clock.move(60)
    await issue.hears("Idle.")
    await world.quiet()
    assert len(issue.from_bot) == 2


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
