"""Random histories of worktrees: whatever people, agents and crashes do, the bot loses and destroys nothing.

`--hypothesis-profile=explore` looks for new ones.
"""

import asyncio
from functools import partial
from pathlib import Path
from typing import Literal

import hypothesis
import pytest
from hypothesis import HealthCheck
from hypothesis.stateful import run_state_machine_as_test

from tests.support.git_repositories import SANDBOXES
from tests.support.histories.database import history_database
from tests.support.histories.machine import Shared
from tests.support.histories.maintenance import MaintenanceRules
from tests.support.histories.people import PeopleRules

EXAMPLES = {"off": 30, "bwrap": 10}


class History(MaintenanceRules, PeopleRules):
    """All rules together."""


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_no_history_loses_work(tmp_path: Path, database_url: str, sandbox: Literal["off", "bwrap"]) -> None:
    profile = hypothesis.settings()
    steady = profile.derandomize
    wanted = hypothesis.settings(
        max_examples=EXAMPLES[sandbox] if steady else profile.max_examples,
        stateful_step_count=12 if steady else 30,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as loop:
        stack = history_database(database_url)
        pool = loop.run(stack.__aenter__())
        try:
            theatre = Shared(loop, pool, tmp_path, sandbox)
            run_state_machine_as_test(partial(History, theatre), settings=wanted)  # type: ignore[arg-type]
        finally:
            loop.run(stack.__aexit__(None, None, None))
