"""Fixtures of the scenarios: `world` for most, `a_world` for other settings, `sandboxed_settings` for a sandbox.

A story runs once: without a sandbox where that is not its subject, else in one where the machine has one
(`sandbox_settings`). `tests/integration/test_without_a_sandbox.py` has what is different without one.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from bot.demo.pair import agent_in_a_folder
from tests.support.git_repositories import usable_sandbox, why_no_sandbox
from tests.support.world import World, open_world

Worlds = Callable[..., AbstractAsyncContextManager[World]]


@pytest.fixture
def a_world(database_url: str, tmp_path: Path) -> Worlds:
    """Opens a world with settings of one's own: `async with a_world({"ALLOWED_USERS": "maria"}) as world`."""
    return partial(open_world, database_url, tmp_path)


@pytest.fixture
async def world(a_world: Worlds) -> AsyncIterator[World]:
    """Yield a running bot and its GitHub; an unread text of the bot fails the test."""
    async with a_world() as world:
        yield world


@pytest.fixture
def sandboxed_settings(tmp_path: Path) -> dict[str, str]:
    """Settings that run the scripted agent in a sandbox, which shows only the folder that AGENT_COMMAND names.

    Skips the test where this machine has no usable bubblewrap.
    """
    usable_sandbox(tmp_path)
    return {"AGENT_SANDBOX": "bwrap", "AGENT_COMMAND": agent_in_a_folder(tmp_path)}


@pytest.fixture
def sandbox_settings(request: pytest.FixtureRequest) -> dict[str, str]:
    """Settings that run the agent in a sandbox, or without one where the machine has none."""
    if why_no_sandbox():
        return {}
    settings: dict[str, str] = request.getfixturevalue("sandboxed_settings")
    return settings
