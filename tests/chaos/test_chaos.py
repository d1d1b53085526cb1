"""One round of the random faults, the same in every run. `make chaos` plays many."""

from pathlib import Path

import pytest

from tests.chaos.round import Plan, play, postgres


@pytest.mark.expects_errors  # the simulated GitHub logs requests whose client was killed
async def test_every_promise_holds_while_processes_are_killed_at_random(tmp_path: Path) -> None:
    async with postgres(tmp_path / "postgres") as server:
        outcome = await play(tmp_path / "round", server, Plan(seed=1, number=1, kills=12, nodes=2), print)
    assert not outcome.violations, f"{outcome.violations}; see {outcome.directory}"
    assert outcome.kills >= 12
