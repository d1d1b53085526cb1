"""Work in GitHub's own order: a request on an issue waits for the issues that block it."""

from tests.support.world import World

BLOCKED = "(select count(*) from turns where state = 'queued' and blocked_by is not null) = {}"


async def test_five_issues_that_block_each_other_are_worked_on_in_their_order(world: World) -> None:
    issues = [await world.maria.opens_issue(f"Step {at}", f"write step.txt: {at}\nsay step {at}") for at in range(1, 6)]
    maria, after = world.maria.person, {1: (0,), 2: (1,), 3: (1,), 4: (2, 3)}
    for at, blockers in after.items():
        for blocker in blockers:
            await maria.block(issues[at].thread, issues[blocker].thread)
    for issue in issues:
        await maria.label(issue.thread, "threadtree")

    await issues[0].hears("step 1")
    await issues[1].sees("Waiting for [#1](")
    await issues[4].sees("(blocked by). It starts when those are closed. `/start` begins it at once")
    await world.until(BLOCKED.format(4))
    waits = {2: "#1 (blocked by). It starts when that is closed.", 3: "#2 (blocked by). It starts when that is closed."}
    waits |= {4: waits[3], 5: "#3 and #4 (blocked by). It starts when those are closed."}
    ways_out = "/start begins it at once, /stop ends the wait."
    told = {number: f"Waiting for {blockers} {ways_out}" for number, blockers in waits.items()}
    assert dict(await world.turns("number", "reason")) == {1: None, **told}
    # What one step came to is there for the next one.
    await world.maria.pushes("main", {"merged.txt": "yes\n"})
    await issues[0].closes()
    await issues[1].hears("step 2")
    assert (await world.files("threadtree/issue-2")).keys() == {"README.md", "merged.txt", "step.txt"}
    await issues[1].closes()
    await issues[2].hears("step 3")
    await issues[3].hears("step 4")
    await issues[2].closes()
    # A removed relation counts as well.
    await maria.unblock(issues[4].thread, issues[3].thread)
    await issues[4].hears("step 5")
    assert await world.turns("state") == ["done"] * 5


async def test_a_request_waits_until_its_blocker_is_closed_for_good(world: World) -> None:
    first, second, other = [await world.maria.opens_issue(title) for title in ("First", "Second", "Other")]
    await world.maria.person.block(second.thread, first.thread)
    await second.says("@threadtree-bot say second")
    await second.sees("Waiting for [#1](")
    await world.until(BLOCKED.format(1))

    # Requests of other threads do not wait for it, those of the same thread go in line, commands are answered.
    await other.says("@threadtree-bot say other")
    await other.hears("other")
    await second.says("@threadtree-bot say third")
    await second.sees("Queued. One request is ahead of this one. The first one waits. Waiting for #1 (blocked by).")
    await second.says("/status")
    await second.sees("A request waits. Waiting for #1 (blocked by). It starts when that is closed.")

    # The machine looks each hour, and finds the same.
    world.clock.move(3700)
    await world.until(f"(select not_before > '{world.clock().isoformat()}' from turns where id = 1)")  # noqa: S608

    await world.maria.person.close(first.thread, reason="not_planned")
    await second.sees("Waiting for your answer: [#1](")
    await world.until("(select waits_for = 'answer' from listed_turns where id = 1)")
    await first.reopens()
    await world.until("(select reason like 'Waiting for #1 (blocked by).%' from turns where id = 1)")
    await first.closes()
    heard = "".join(await second.hears_all())
    assert heard.index("second") < heard.index("third")
    assert "was closed as" not in heard
