"""What became of the bot's pull requests, from GitHub's webhooks to the lists."""

from typing import Any

import asyncpg

from bot.inbox import outcomes
from bot.store.scope import EVERYTHING
from tests.support.world import Talk, World


async def rows(world: World) -> list[asyncpg.Record]:
    found: list[asyncpg.Record] = await world.database.fetch("select * from listed_outcomes order by branch")
    return found


async def with_pull(world: World, title: str, name: str) -> tuple[Talk, Talk]:
    """Return an issue for which the bot pushed a file, and the pull request of its branch."""
    issue = await world.maria.opens_issue(title)
    await issue.says(f"@threadtree-bot write {name}: {name}")
    await issue.hears("**Changed**")
    return issue, await world.maria.opens_pull(title, head=f"threadtree/issue-{issue.number}")


async def test_a_merged_a_closed_and_a_reverted_pull_request(world: World) -> None:
    (_, merged), (_, closed) = await with_pull(world, "One", "one.txt"), await with_pull(world, "Two", "two.txt")
    await world.maria.pushes(closed.pull.head_ref, {"two.txt": "by hand\n"})
    await merged.merges()
    await closed.closes()
    await world.quiet()

    first, second = await rows(world)
    assert (first["pull_request"], first["state"], first["rewritten"]) == (
        f"acme/shop#{merged.number}",
        "merged",
        False,
    )
    assert (first["turns"], first["agent"], first["seconds_to_merge"] >= 0) == (1, "custom", True)
    assert (second["state"], second["rewritten"], second["seconds_to_merge"]) == ("closed", True, None)

    await world.maria.pushes("take-back", {"one.txt": "gone\n"})
    back = await world.maria.opens_pull('Revert "One"', f"Reverts acme/shop#{merged.number}", head="take-back")
    await back.merges()
    await world.quiet()

    first, second = await rows(world)
    assert (first["state"], first["reverted_by"]) == ("reverted", f"acme/shop#{back.number}")
    found: list[dict[str, Any]] = await outcomes.sums(world.database, world.clock().date(), None, EVERYTHING)
    assert [(row["closed"], row["merged"], row["reverted"], row["rewritten"]) for row in found] == [(2, 1, 1, 0)]


async def test_a_reopened_pull_request_and_those_of_people_are_not_among_them(world: World) -> None:
    _, pull = await with_pull(world, "One", "one.txt")
    await world.maria.pushes("by-hand", {"other.txt": "other\n"})
    of_people = await world.maria.opens_pull("By hand", head="by-hand")
    await of_people.closes()
    await pull.closes()
    await world.quiet()
    assert len(await rows(world)) == 1

    await pull.reopens()
    await world.quiet()
    assert await rows(world) == []


async def test_what_github_tells_late_undoes_nothing(world: World) -> None:
    _, pull = await with_pull(world, "One", "one.txt")
    await pull.closes()
    await pull.reopens()
    world.clock.move(10)
    await pull.merges()
    await world.quiet()
    await world.database.execute("update deliveries set state = 'failed' where event = 'pull_request'")
    for action in ("closed", "reopened"):
        told = [one for one in world.github.deliveries if (one.event, one.action) == ("pull_request", action)]
        await world.github.redeliver(told[0].guid)
    await world.quiet()
    assert [row["state"] for row in await rows(world)] == ["merged"]
