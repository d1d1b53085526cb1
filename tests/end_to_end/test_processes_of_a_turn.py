"""How many processes a turn starts: each costs some milliseconds. None but a fetch reads all registered worktrees."""

import asyncio

from bot.simulated.github.faults import Held
from tests.end_to_end.conftest import Worlds
from tests.end_to_end.test_fetching import clone_of
from tests.support.patience import until_true
from tests.support.started import processes_started

# Half a second of overhead (DESIGN.md §7) has room for that many, at some 5 ms each.
# A following turn starts more: for what was taken off its branch on GitHub, which a first turn has not. One of them
# writes the index that a person's git sees.
MOST = 51


async def test_a_turn_starts_few_processes(a_world: Worlds, sandbox_settings: dict[str, str]) -> None:
    async with a_world(sandbox_settings) as world:
        warm = await world.maria.opens_issue("First", "@threadtree-bot write first.txt: one")
        await warm.hears("1 file +")
        issue = await world.maria.opens_issue("Greet people")
        await world.quiet()
        await until_true((clone_of(world) / "threadtree-packed").exists)  # a new clone is packed beside its turns
        with processes_started() as new:
            await issue.says("@threadtree-bot write hello.txt: hello")
            await issue.hears("1 file +")
            await world.quiet()
        known, fetched = len(world.github.requests), asyncio.Event()
        world.github.faults.add(Held(fetched), path="*/info/refs")
        with processes_started() as following:
            await issue.says("@threadtree-bot append hello.txt: again")
            # The thread is read while the clone is fetched.
            await world.github.wait_for(
                lambda: any(request.path == "/graphql" for request in world.github.requests[known:])
            )
            fetched.set()
            await issue.hears("1 file +")
            await world.quiet()

        # The agent is one of them.
        assert len(new) <= MOST, "\n".join(new)
        assert len(following) <= MOST, "\n".join(following)
        assert not [line for line in (*new, *following) if "git worktree" in line]
