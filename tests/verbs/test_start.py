"""`/start`: a request that waits for other issues begins at once."""

from bot.verbs.start import NOTHING_WAITS
from tests.support.world import World


async def test_start_begins_a_request_that_waits_for_other_issues(world: World) -> None:
    first, second = [await world.maria.opens_issue(title) for title in ("First", "Second")]
    await world.maria.person.block(second.thread, first.thread)
    await second.says("/start")
    await second.hears(NOTHING_WAITS)
    await second.says("@threadtree-bot say second")
    await world.until("exists (select from turns where blocked_by is not null)")
    await second.says("/start")
    await second.hears("second")

    # Somebody has decided that: later requests here do not wait either, those of other issues do, until `/stop`.
    await second.says("@threadtree-bot say again")
    await second.hears("again")
    third = await world.maria.opens_issue("Third")
    await world.maria.person.block(third.thread, first.thread)
    await third.says("@threadtree-bot say third")
    await world.until("exists (select from turns where blocked_by is not null)")
    await third.says("/stop")
    await third.hears("**Stopped** by `maria`.")
    await first.closes()
    await world.quiet()
    assert await world.turns("state") == ["done", "done", "stopped"]
