"""`/retry`: the last request that did not end as done is asked again."""

from tests.support.world import World


async def test_retry_runs_the_last_unfinished_request(world: World) -> None:
    issue = await world.maria.opens_issue("Flaky")
    await issue.says("@threadtree-bot fail the first\nsay unreached")
    await issue.hears("**Failed:**", "the first", "/retry")
    await issue.says("@threadtree-bot say fine")
    await issue.hears("fine")

    await issue.says("/retry")

    await issue.hears("**Failed:**", "the first")
    assert await world.turns("state") == ["failed", "done", "failed"]
