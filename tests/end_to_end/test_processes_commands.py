"""The command line as an operator meets it: each command a process with an environment from nothing."""

from pathlib import Path

import orjson
import pytest

from tests.end_to_end.processes import stage

BAD_SETTINGS = {
    "no webhook secret": ({"GITHUB_WEBHOOK_SECRET": ""}, "GITHUB_WEBHOOK_SECRET", 2),
    "no token": ({"GITHUB_TOKEN": ""}, "GITHUB_TOKEN", 2),
    "token and app": ({"GITHUB_APP_ID": "1"}, "GITHUB_APP_ID", 2),
    "no such agent": ({"AGENT_COMMAND": "/no/such/agent --acp"}, "AGENT_COMMAND", 2),
    "no such address": ({"GITHUB_API_URL": "not an address"}, "GITHUB_API_URL", 2),
    "a token that GitHub refuses": ({"GITHUB_TOKEN": "ghp_wrong"}, "GITHUB_TOKEN", 1),
    "a database that is not there": ({"DATABASE_URL": "postgresql:///no_such?host=/nowhere"}, "DATABASE_URL", 1),
    "a port that is taken": ({}, "PORT", 1),
}


@pytest.mark.parametrize("problem", BAD_SETTINGS)
async def test_what_keeps_serve_from_starting_is_one_line_that_names_the_setting(
    problem: str, tmp_path: Path, database_url: str
) -> None:
    settings, name, status = BAD_SETTINGS[problem]
    async with stage(tmp_path, database_url) as here:
        if name == "PORT":
            settings = {"PORT": str(here.github.port)}
        process = await here.run("serve", **settings)
        assert await process.ended() == status
        [line] = [line for line in process.lines if not line.startswith("{")]
        assert line.startswith("threadtree: ")
        assert name in line
        assert "ghp_wrong" not in process.stderr
