"""Real agents plan without changing a file, and carry the plan out in the same session once it is approved."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.agents.conftest import AGENTS
from tests.agents.test_whole_way import patience, settings_of
from tests.support.models.server import SimulatedModels
from tests.support.world import open_world

__all__ = ["patience"]

WORK = "write notes.txt: hello"
PROPOSALS = {
    "claude": "propose {}",
    "claude-acp": "propose {}",
    "codex": "say <proposed_plan>\nsay {}\nsay </proposed_plan>",
}
"""How the agents' models end their modes for plans; the others just say what they would do."""


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_plan_changes_no_file_and_its_approval_does(
    agent: str, models: SimulatedModels, database_url: str, tmp_path: Path
) -> None:
    more = {**settings_of(agent, models), "AGENT_SANDBOX": "bwrap"}
    async with open_world(database_url, tmp_path, more) as world:
        issue = await world.maria.opens_issue("Greet people")
        proposal = PROPOSALS.get(agent, "say {}").format(WORK)
        tries = "run echo hello > by-shell.txt\nwrite by-tool.txt: hello"
        await issue.says(f"@threadtree-bot\n/plan {tries}\n{proposal}")
        shown = await issue.hears(WORK, "This is a plan: nothing was committed.")
        assert shown.startswith(WORK), "the plan is the answer"
        [worktree] = await world.worktrees("path")
        assert sorted(await asyncio.to_thread(os.listdir, worktree)) == [".git", "README.md"]

        await issue.says("/approve")
        await issue.hears("1 file +1")
        files = await world.files("threadtree/issue-1")
        assert sorted(files) == ["README.md", "notes.txt"]
        assert files["notes.txt"] == "hello"
        if agent != "gemini":  # see `test_whole_way`
            assert len(await world.sessions("id")) == 1
