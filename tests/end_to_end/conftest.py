"""Fixtures of the scenarios: `world` for most, `a_world` for those that need other settings."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.support.world import World, open_world

Worlds = Callable[..., AbstractAsyncContextManager[World]]


@pytest.fixture
def a_world(database_url: str, tmp_path: Path) -> Worlds:
    """Opens a world with settings of one's own: `async with a_world({"ALLOWED_USERS": "maria"}) as world`."""
    return partial(open_world, database_url, tmp_path)


@pytest.fixture
async def world(a_world: Worlds) -> AsyncIterator[World]:
    """A running bot and its GitHub; what the bot says and nobody hears fails the test."""
    async with a_world() as world:
        yield world
