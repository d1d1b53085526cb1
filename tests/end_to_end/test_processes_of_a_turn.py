"""How many processes a turn starts: each costs time, whatever it does."""

import pytest

from tests.end_to_end.conftest import Worlds
from tests.support.started import processes_started


@pytest.mark.parametrize(("sandbox", "most"), [("off", 23), ("bwrap", 27)])
async def test_a_turn_starts_few_processes(
    a_world: Worlds, sandbox: str, most: int, request: pytest.FixtureRequest
) -> None:
    settings = request.getfixturevalue("caged_settings") if sandbox == "bwrap" else {}
    async with a_world(settings) as world:
        warm = await world.maria.opens_issue("First", "@threadtree-bot write first.txt: one")
        await warm.hears("1 file +")
        issue = await world.maria.opens_issue("Greet people")
        await world.quiet()

        with processes_started() as new:
            await issue.says("@threadtree-bot write hello.txt: hello")
            await issue.hears("1 file +")
            await world.quiet()
        with processes_started() as following:
            await issue.says("@threadtree-bot append hello.txt: again")
            await issue.hears("1 file +")
            await world.quiet()

        # The agent is one of them.
        assert len(new) <= most, "\n".join(new)
        assert len(following) <= most, "\n".join(following)
