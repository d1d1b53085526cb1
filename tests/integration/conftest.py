"""Fixtures of the tests on rows: a pool of connections, and rows of turns on one of them."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from bot.store.database import Pool
from tests.support.doorbells import Rung, doorbells
from tests.support.turn_rows import TurnRows


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    async with asyncpg.create_pool(database_url, min_size=1, max_size=8) as pool:
        yield pool


@pytest.fixture
async def rung(database_url: str) -> AsyncIterator[Rung]:
    async with doorbells(database_url) as rung:
        yield rung


@pytest.fixture
async def world(pool: Pool) -> AsyncIterator[TurnRows]:
    async with pool.acquire() as db:
        yield TurnRows(db)
