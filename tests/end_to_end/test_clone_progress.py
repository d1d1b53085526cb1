"""The tracking comment shows the progress of a slow clone."""

import asyncio
import random

from bot.simulated.github.faults import Trickle
from tests.support.world import World


async def test_a_large_repository_shows_the_progress_of_its_clone(world: World) -> None:
    noise = random.Random(1)  # noqa: S311 - what does not compress
    await world.maria.pushes("main", {f"{number}.bin": noise.randbytes(8_000) for number in range(200)})
    # Slow until its progress was seen: on a busy machine that takes a while.
    seen = asyncio.Event()
    world.faults.add(Trickle(32_000, 0.5, until=seen), method="POST", path="*/git-upload-pack", times=None)
    issue = await world.maria.opens_issue("Something big")

    await issue.says("@threadtree-bot say Done so.")

    await issue.sees("so far.\n\nCloning the repository: receiving objects ")
    await world.until("exists (select from turns where phase like 'Cloning the repository: receiving objects %')")
    seen.set()
    await issue.hears("Done so.")
    assert await world.turns("phase") == [None]


async def test_a_turn_that_waits_for_its_repository_can_be_stopped(world: World) -> None:
    world.faults.add(Trickle(100, 600), method="POST", path="*/git-upload-pack", times=None)
    issue = await world.maria.opens_issue("Something slow")
    await issue.says("@threadtree-bot say Never.")
    await issue.sees("so far.\n\nCloning the repository.")

    await issue.says("@threadtree-bot /stop")

    await issue.hears("**Stopped**")
