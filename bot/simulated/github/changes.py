"""Waiting for a state instead of asking for it again and again."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Changes:
    """Wakes whoever waits whenever something in the simulation changed."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Tell every waiter to look again."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait_for(self, predicate: Callable[[], T], timeout: float) -> T:
        """Return the predicate's first true value; raises TimeoutError after `timeout` seconds."""
        async with asyncio.timeout(timeout):
            while not (value := predicate()):
                await self._next.wait()
            return value
