"""What a run writes into rows while its agent works."""

import asyncio
from typing import Any

import pytest

from bot.agents.driver import ToolStarted
from bot.model import ThreadRef
from bot.run.progress import Progress
from bot.store import turns
from bot.store.database import Pool
from tests.support.patience import PATIENCE_SECONDS
from tests.support.turn_rows import NOON, TurnRows, repository


async def test_a_step_that_is_just_written_when_the_agent_ends_is_written_once(
    pool: Pool, world: TurnRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, _ = await world.home()
    await world.ask(conversation)
    turn = await world.claimed()
    written, answered = asyncio.Event(), asyncio.Event()
    add_steps = turns.add_steps

    async def add_then_wait(*given: Any) -> None:
        await add_steps(*given)
        written.set()
        await answered.wait()

    monkeypatch.setattr(turns, "add_steps", add_then_wait)
    progress = Progress(str)
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with progress.shown(pool, ThreadRef(repository(), conversation), turn, lambda: NOON):
            progress.note(ToolStarted("Read a.txt"))
            await written.wait()
            asyncio.get_running_loop().call_soon(answered.set)  # after the end has come

    assert [row["words"] for row in await world.db.fetch("select words from steps")] == ["Read a.txt"]
