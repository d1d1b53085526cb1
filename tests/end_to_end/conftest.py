"""Fixtures of the scenarios: `world` for most, `a_world` for other settings, `caged_settings` for a cage.

What a cage changes is tested below, each rule without one and with one. A story runs once, in a cage where the machine
has one (`sandbox_settings`), or both ways where it is marked `without_and_with_a_cage`.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from bot.demo.pair import agent_in_a_folder
from bot.sandbox.cage import Unusable, cage_for
from tests.support.git_repositories import SANDBOXES, SEARCH_PATH, usable_cage
from tests.support.world import World, open_world

Worlds = Callable[..., AbstractAsyncContextManager[World]]
without_and_with_a_cage = pytest.mark.parametrize("sandbox_settings", SANDBOXES, indirect=True)


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
def caged_settings(tmp_path: Path) -> dict[str, str]:
    """Settings that run the scripted agent in a cage, which shows only the folder that AGENT_COMMAND names.

    Skips the test where this machine has no usable bubblewrap.
    """
    usable_cage(tmp_path)
    return {"AGENT_SANDBOX": "bwrap", "AGENT_COMMAND": agent_in_a_folder(tmp_path)}


@pytest.fixture
def sandbox_settings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Settings that run the agent in a cage, or without one where the machine has none or the test's mark says so."""
    sandbox = getattr(request, "param", None)
    no_cage = isinstance(cage_for(tmp_path, SEARCH_PATH).probe(), Unusable) if sandbox is None else sandbox == "off"
    settings: dict[str, str] = {} if no_cage else request.getfixturevalue("caged_settings")
    return settings
