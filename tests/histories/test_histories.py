"""Random histories of worktrees: whatever people, agents and crashes do, the bot loses and destroys nothing.

`make histories ARGS="--count 1000 --seed 2"` plays new ones.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import run_state_machine_as_test

from tests.support.histories.database import history_database
from tests.support.histories.disk import Deed
from tests.support.histories.machine import Shared
from tests.support.histories.maintenance import MaintenanceRules
from tests.support.histories.people import PeopleRules

SHORTEST, LENGTHS = 5, 8
"""Steps of a history, of which there are as many in a batch."""


class History(MaintenanceRules, PeopleRules):
    """All rules together."""


@pytest.mark.timeout(7200)
def test_no_history_loses_work(
    tmp_path: Path, database_url: str, sandbox: Literal["off", "bwrap"], batch: int | None, number: int
) -> None:
    wanted = hypothesis.settings(
        max_examples=number,
        stateful_step_count=12 if batch is None else SHORTEST + batch % LENGTHS,
        suppress_health_check=list(HealthCheck),
        # To make one shorter takes minutes, and they are short.
        phases=(Phase.generate,),
        derandomize=batch is None,
        database=None,
        deadline=None,
    )
    with shared(tmp_path, database_url, sandbox) as parts:
        history = partial(History, parts)
        if batch is not None:
            hypothesis.seed(batch)(history)
        run_state_machine_as_test(history, settings=wanted)  # type: ignore[arg-type]


def test_an_ignored_file_untracked_work_and_links_outlive_a_switch_a_removal_and_a_move(
    tmp_path: Path, database_url: str
) -> None:
    with shared(tmp_path, database_url, "off") as parts:
        history = History(parts)
        history.first(cloned=True, talk="issue 1", doing=[("ignore", "a")], outcome="done")
        history.someone_pushes_to_a_branch(which=0, push="to main", name="a.ign")
        history.turn(talk="issue 1", doing=[("write", "b")], outcome="failed")
        history.housekeeping(what="restart", days=0, name="elsewhere", moved=True)
        history.commands(talk="issue 1", verb="remove", at_once=True)
        assert history.ground.directories() == []
        history.stopped(talk="issue 2", doing=[("write", "a")], outcome="done", step=30)
        history.teardown()


@pytest.mark.parametrize("dropping", ["drop commit", "amend"])
def test_what_an_agent_drops_from_its_branch_in_a_sandbox_is_its_own_act(
    tmp_path: Path, database_url: str, dropping: Deed
) -> None:
    with shared(tmp_path, database_url, "bwrap") as parts:
        history = History(parts)
        history.first(cloned=True, talk="issue 1", doing=[("commit", "a")], outcome="failed")
        history.turn(talk="issue 1", doing=[(dropping, "b")], outcome="done")
        history.teardown()


@contextmanager
def shared(tmp_path: Path, database_url: str, sandbox: Literal["off", "bwrap"]) -> Iterator[Shared]:
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as loop:
        stack = history_database(database_url)
        pool = loop.run(stack.__aenter__())
        try:
            yield Shared(loop, pool, tmp_path, sandbox)
        finally:
            loop.run(stack.__aexit__(None, None, None))
