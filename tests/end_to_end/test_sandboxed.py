"""From a comment to its answer with the agent in its sandbox (AGENT_SANDBOX=bwrap)."""

import asyncio
import shutil
from pathlib import Path

import pytest

from bot.demo.pair import settings_for
from bot.serve.base import CannotStartError
from bot.serve.parts import Surroundings
from bot.serve.process import run_both
from bot.simulated.github.server import SimulatedGitHub
from tests.end_to_end.conftest import Worlds
from tests.support.clock import HandMovedClock


async def test_a_sandboxed_agent_edits_commits_and_continues_its_session(
    a_world: Worlds, sandboxed_settings: dict[str, str]
) -> None:
    async with a_world(sandboxed_settings) as world:
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot write a.txt: one\ncommit Add a\nwrite b.txt: two\nremember blue")
        await issue.hears("I will remember blue.", "2 files +")

        await issue.says("@threadtree-bot append a.txt: more\nrecall")

        await issue.hears("I remember: blue.", "1 file +")
        files = await world.files((await world.branches())["threadtree/issue-1"])
        assert files["a.txt"].splitlines() == ["one", "more"]
        assert files["b.txt"].strip() == "two"


async def test_without_bubblewrap_nothing_starts(database_url: str, tmp_path: Path) -> None:
    git = shutil.which("git")
    assert git is not None
    (tmp_path / "bin").mkdir()
    broken = tmp_path / "bin" / "bwrap"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{Path(git).parent}:/usr/bin:/bin"
    async with SimulatedGitHub.running(tmp_path / "github", HandMovedClock()) as github:
        settings = settings_for(github, tmp_path / "data", path, AGENT_SANDBOX="auto")
        with pytest.raises(CannotStartError, match=r"AGENT_SANDBOX=auto: .*bubblewrap"):
            await run_both(settings, database_url, asyncio.Event(), Surroundings(), lambda _: None)
