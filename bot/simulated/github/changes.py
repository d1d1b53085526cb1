"""Waits for a state without polling."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Changes:
    """A signal that wakes all waiters when anything in the simulation changes."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wake every waiter to check its predicate again."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait_for(self, predicate: Callable[[], T], timeout: float) -> T:
        """Return the predicate's first true value. Raises TimeoutError after `timeout` seconds."""
        async with asyncio.timeout(timeout):
            while not (value := predicate()):
                await self._next.wait()
            return value
