"""Where the agent's sandbox is not usable, nothing starts."""

import asyncio
import shutil
from pathlib import Path

import pytest

from bot.demo.pair import settings_for
from bot.serve.base import CannotStartError
from bot.serve.parts import Surroundings
from bot.serve.process import run_both
from bot.simulated.github.server import SimulatedGitHub
from tests.support.clock import HandMovedClock


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
