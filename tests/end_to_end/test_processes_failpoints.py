"""kill -9 between any two effects on a worktree: after a restart the state agrees, nothing is lost or said twice."""

import re
import signal
from pathlib import Path

import pytest

import bot
from tests.support.failpoint_scenario import Scenario
from tests.support.failpoint_scenarios import ALSO, SCENARIOS
from tests.support.processes import deployment

REACHED = re.compile(r'\breached\(\s*"([a-z-]+)"')
FAILPOINTS = sorted(
    {name for file in Path(str(bot.__file__)).parent.rglob("*.py") for name in REACHED.findall(file.read_text())}
)


@pytest.mark.parametrize(("name", "kind"), [*((name, SCENARIOS.get(name)) for name in FAILPOINTS), *ALSO])
async def test_the_state_after_a_kill_is_complete_after_a_restart(
    tmp_path: Path, database_url: str, name: str, kind: type[Scenario] | None
) -> None:
    assert kind is not None, f"no scenario reaches the failpoint {name}"
    async with deployment(tmp_path, database_url) as here:
        scenario = kind(here, name, tmp_path / "armed")
        doomed = await scenario.play_until_killed()
        assert await doomed.ended() == -signal.SIGKILL, doomed.stderr
        await here.no_agents()

        await scenario.restart()
        await scenario.quiet()
        await scenario.check()
        await agrees(scenario)


def test_every_scenario_belongs_to_a_failpoint() -> None:
    assert SCENARIOS.keys() <= {*FAILPOINTS}


async def agrees(scenario: Scenario) -> None:
    """Check that each ready row has one directory and one entry of git, without others, and that nothing waits."""
    ready, here = sorted(await scenario.live()), scenario.here
    folder, clone = (
        here.data_dir / "worktrees" / "acme" / "shop",
        here.data_dir / "repos" / "acme" / "shop.git",
    )
    assert sorted(one.name for one in folder.iterdir() if one.is_dir()) == ready
    assert sorted(one.stem for one in folder.glob("*.json")) == ready
    pointers = [Path(pointer.read_text().strip()).parent for pointer in clone.glob("worktrees/*/gitdir")]
    assert sorted(one.name for one in pointers if one.parent == folder) == ready
    assert {one.parent for one in pointers} <= {folder}
    unfinished = "select count(*) from worktrees where state not in ('ready', 'removed')"
    assert await here.value(unfinished) == 0
