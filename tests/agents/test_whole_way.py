"""A mention, and a real agent does the work: edited by its own tool, committed, pushed, answered, remembered."""

import os
from pathlib import Path

import pytest

from bot.run.agents.presets import NotInstalled, command_of, preset
from bot.simulated.models.server import SimulatedModels
from tests.agents.conftest import AGENTS, KEY
from tests.agents.install import PROGRAMS, node_folder
from tests.end_to_end.world import open_world


@pytest.mark.parametrize("sandbox", ["off", "bwrap"])
@pytest.mark.parametrize("agent", AGENTS)
async def test_a_mention_becomes_pushed_work_and_the_next_one_goes_on(
    agent: str, sandbox: str, models: SimulatedModels, database_url: str, tmp_path: Path
) -> None:
    chosen = preset(agent)
    assert chosen is not None
    path = os.pathsep.join([str(PROGRAMS), str(node_folder()), os.environ["PATH"]])
    if isinstance(command_of(chosen, path), NotInstalled):
        pytest.skip(f"{agent} is not installed; `make test-agents` does it")
    api = chosen.apis[0]
    more = {
        "AGENT": agent,
        "AGENT_SANDBOX": sandbox,
        "AGENT_COMMAND": "",
        "PATH": path,
        api.key: KEY,
        api.base_url: models.url,
    }
    async with open_world(database_url, tmp_path, more) as world:
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot\nwrite notes.txt: hello\nremember plum\nsay I wrote it.")
        await issue.hears("I wrote it.", "1 commit, 1 file")
        assert (await world.files((await world.branches())["threadtree/issue-1"]))["notes.txt"] == "hello"

        if agent != "gemini":  # it would have to wait for the next minute (see bot.run.agents.opening)
            await issue.says("@threadtree-bot\nrecall")
            await issue.hears("I remember: plum.")

        await issue.says("@threadtree-bot /reset-context")
        await issue.hears("AI context reset.")
        await issue.says("@threadtree-bot\nrecall")
        await issue.hears("I remember: nothing.")
