"""What a repository's file asks again and again: `[[standing]]`."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.end_to_end.conftest import Worlds
from tests.support.world import Talk, World

FILE = ".threadtree/config.toml"
WEEKLY = """\
[[standing]]
every = "day 06:00"
ask = "write deps.txt: newer"
as = "maria"
"""


def moved_to(world: World, hour: int = 5, minute: int = 50) -> None:
    """Move the clock to that time of the next day (UTC)."""
    now = world.clock()
    wanted = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    seconds = (wanted - now).total_seconds()
    world.clock.move(seconds if seconds > 0 else seconds + 24 * 3600)


async def test_first(a_world: Worlds) -> None:
    async with a_world({"SWEEP_INTERVAL_SECONDS": "1"}) as world:
        issue = await world.maria.opens_issue("x", "@threadtree-bot hello")
        await issue.hears()
        moved_to(world)
        await world.maria.pushes("main", {FILE: WEEKLY})
        world.clock.move(60)
        import asyncio
        for _ in range(10):
            await asyncio.sleep(0.5)
            print([dict(r) for r in await world.database.fetch("select * from standing")])
        moved_to(world, 6, 1)
        for _ in range(10):
            await asyncio.sleep(0.5)
        print([dict(r) for r in await world.database.fetch("select guid, state, error from deliveries where event='standing'")])
        for t in world.repository.threads.values():
            print(t.number, t.title, t.body, [l.name for l in t.labels])
            for c in t.comments: print('  ', c.body)
        assert 0
