"""Work that is raced with a reason to end it."""

import asyncio
from typing import NoReturn

import pytest

from bot.tasks import unless


async def raises(begin: asyncio.Event) -> NoReturn:
    await begin.wait()
    raise LookupError


async def test_work_that_is_done_first_is_returned() -> None:
    assert await unless(raises(asyncio.Event()), asyncio.sleep(0, "done")) == "done"


async def test_an_interruption_is_raised_once_the_work_has_ended() -> None:
    begin, cleaned = asyncio.Event(), False

    async def work() -> None:
        nonlocal cleaned
        try:
            begin.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            cleaned = True

    with pytest.raises(LookupError):
        await unless(raises(begin), work())
    assert cleaned
