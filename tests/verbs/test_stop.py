"""`/stop`: what runs ends, and with `all` what waits; nothing is pushed after it."""

from bot.tree.clone.clone import Clone, clone_lock
from bot.tree.git.runner import Git
from tests.support.world import World


async def test_stop_ends_the_running_turn_and_retry_repeats_it(world: World) -> None:
    issue = await world.maria.opens_issue("Stuck")
    await issue.says("@threadtree-bot write half.txt: done\nhang")
    await issue.sees_working()

    await issue.says("/stop")
    await issue.hears("**Stopped** by `maria`.", "/retry")
    assert await world.turns("state") == ["stopped"]

    await issue.says("/retry")
    await issue.sees_working()
    await issue.says("@threadtree-bot /stop")
    await issue.hears("**Stopped**")
    assert len({turn["text"] for turn in await world.turns()}) == 1


async def test_nothing_is_pushed_after_a_stop_that_came_while_the_push_waited(world: World) -> None:
    issue = await world.maria.opens_issue("Slow")
    gate = world.gate()
    await issue.says(f"@threadtree-bot write a.txt: one\nwait {gate}\nsay All done.")
    await issue.sees_working()
    clone = Clone.at(world.data_dir, "acme/shop", Git())
    async with clone_lock(clone):
        gate.open()
        await world.until("exists (select from turns where answer is not null and state = 'running')")
        await issue.says("/stop")
        # It does not even wait for the clone, which another conversation can hold for minutes.
        await issue.hears("Stopped", "All done.")
    assert await world.turns("state") == ["stopped"]
    assert list(await world.branches()) == ["main"]


async def test_stop_keeps_queued_requests_and_stop_all_does_not(world: World) -> None:
    issue = await world.maria.opens_issue("Many wishes")
    await issue.says("@threadtree-bot hang")
    await issue.sees_working()
    await issue.says("@threadtree-bot hang")
    await issue.says("@threadtree-bot say never")
    await issue.sees("Queued. 2 requests are ahead of this one.")

    await issue.says("/stop")
    await issue.hears("**Stopped**")
    await issue.sees_working()
    await issue.says("/status")
    await issue.sees("Queued: [maria's request](")
    await issue.says("/stop all")

    heard = await issue.hears_all()
    assert ["**Stopped**" in text for text in heard] == [True, True, False]
    assert await world.turns("state") == ["stopped", "stopped", "stopped"]
