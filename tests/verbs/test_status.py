"""`/status`: what a thread is doing, what waits, and what there is so far."""

from bot.verbs.status import overview
from tests.support.world import World

STATEMENTS = {"status": (overview.sql, (5, 30))}


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
