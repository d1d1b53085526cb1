"""The slash commands: each does what it says, and only `/retry` starts a turn."""

from bot.tree.clone.clone import Clone, clone_lock
from bot.tree.git.runner import Git
from tests.end_to_end.conftest import Worlds
from tests.support.world import World

CONTEXT_RESET = (
    "AI context reset. Your next message will start a fresh conversation while keeping your current working directory."
)


async def test_reset_context_starts_a_fresh_session_in_the_same_worktree(world: World) -> None:
    issue = await world.maria.opens_issue("Colours")
    await issue.says("@threadtree-bot remember blue\nwrite a.txt: one")
    await issue.hears("I will remember blue.")

    said = await issue.says("/reset-context")
    assert (await issue.hears()).partition("\n\n<!--")[0] == CONTEXT_RESET
    assert said.reactions == ["👀"]
    await issue.says("@threadtree-bot recall\nappend a.txt: two")

    await issue.hears("I remember: nothing.")
    assert await world.sessions("active", "end_reason") == [(False, "reset-requested"), (True, None)]
    assert len(await world.worktrees()) == 1
    assert (await world.files("threadtree/issue-1"))["a.txt"] == "one\ntwo"


async def test_where_a_command_needs_a_mention_a_bare_one_is_for_others(a_world: Worlds) -> None:
    async with a_world({"BARE_COMMANDS": "false"}) as world:
        issue = await world.maria.opens_issue("Quiet")
        bare = await issue.says("/help")
        await issue.says("@threadtree-bot say /status is text here\n\n/status")
        await issue.hears("/status is text here")
        await issue.says("@threadtree-bot /help")
        await issue.hears("A command follows a mention, such as `@threadtree-bot /status`:")
        assert bare.reactions == []
        assert "\n\n/status" in (await world.turns("text"))[0]


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


async def test_status_and_help_are_answered_while_a_turn_runs(world: World) -> None:
    gate = world.gate()
    issue = await world.maria.opens_issue("Busy")
    await issue.says(f"@threadtree-bot wait {gate}\nsay Finished.")
    await issue.sees_working()
    await issue.says("@threadtree-bot say Next.")

    await issue.says("/status")
    await issue.hears("Working on [maria's request](", "Queued: [maria's request](", "Branch `threadtree/issue-1`")
    await issue.says("@threadtree-bot /help")
    await issue.hears("`@threadtree-bot`", "`/reset-context`", "`/stop all`")

    gate.open()
    await issue.hears("Finished.")
    await issue.hears("Next.")


async def test_retry_runs_the_last_unfinished_request(world: World) -> None:
    issue = await world.maria.opens_issue("Flaky")
    await issue.says("@threadtree-bot fail the first\nsay unreached")
    await issue.hears("**Failed:**", "the first", "/retry")
    await issue.says("@threadtree-bot say fine")
    await issue.hears("fine")

    await issue.says("/retry")

    await issue.hears("**Failed:**", "the first")
    assert await world.turns("state") == ["failed", "done", "failed"]


async def test_a_comment_runs_its_commands_in_order_and_then_one_turn_for_the_rest(world: World) -> None:
    issue = await world.maria.opens_issue("Both")
    await issue.says("@threadtree-bot remember blue")
    await issue.hears("blue")

    await issue.says("@threadtree-bot /reset-context\n/status\nrecall")

    await issue.hears("AI context reset.")
    await issue.hears("The next request starts a new conversation")
    await issue.hears("I remember: nothing.")


async def test_status_after_a_reopen_knows_the_branch_on_github(world: World) -> None:
    issue = await world.maria.opens_issue("Back again")
    await issue.says("@threadtree-bot write a.txt: one\nsay Written.")
    await issue.hears("Written.")
    await world.maria.person.close(issue.thread)
    await world.quiet()
    await world.maria.person.reopen(issue.thread)
    await world.quiet()

    await issue.says("/status")

    await issue.hears(
        "The work so far is on [`threadtree/issue-1`](", "The next request starts a new conversation with the agent"
    )
    await issue.says("@threadtree-bot append a.txt: two\nsay Continued.")
    await issue.hears("Continued.")
    await issue.says("/status")
    await issue.hears("Branch [`threadtree/issue-1`](", "1 file changed, 2 commits ahead of `main`, 0 behind")
