"""kill -9 between any two effects on a worktree: after a restart the state agrees, nothing is lost or said twice."""

import re
from pathlib import Path

import pytest

import bot
from tests.support.failpoint_scenario import Scenario
from tests.support.failpoint_scenarios import SCENARIOS
from tests.support.processes import deployment

REACHED = re.compile(r'\breached\(\s*"([a-z-]+)"')
FAILPOINTS = {
    name for file in Path(str(bot.__file__)).parent.rglob("*.py") for name in REACHED.findall(file.read_text())
}


@pytest.mark.parametrize(("kind", "names"), SCENARIOS)
async def test_the_state_after_kills_is_complete_after_a_restart(
    tmp_path: Path, database_url: str, kind: type[Scenario], names: str
) -> None:
    async with deployment(tmp_path, database_url) as here:
        scenario = kind(here, names, tmp_path / "listed")
        await scenario.play()
        await scenario.quiet()
        await scenario.check()
        await agrees(scenario)


def test_every_failpoint_has_its_kill() -> None:
    assert {name for _, names in SCENARIOS for name in names.split()} == FAILPOINTS


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
