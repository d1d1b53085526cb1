"""Time in scenarios: a clock that tests move, and waits for a condition."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

LOOK_EVERY_SECONDS = 0.02


class HandMovedClock:
    """The clock of the bot and of GitHub: the real time plus an offset. A sleep moves it and returns."""

    def __init__(self) -> None:
        self._ahead = timedelta(0)

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    def move(self, seconds: float) -> None:
        """Move the clock."""
        self._ahead += timedelta(seconds=seconds)

    async def sleep(self, seconds: float) -> None:
        """Sleep for the bot: move the clock."""
        wakes_at = self() + timedelta(seconds=seconds)
        await asyncio.sleep(0)
        self._ahead = max(self._ahead, wakes_at - datetime.now(UTC))


async def eventually(
    condition: Callable[[], Awaitable[object]], seconds: float, what: Callable[[], Awaitable[str]]
) -> None:
    """Wait until the condition holds; `what` describes the state if it does not in time."""
    try:
        async with asyncio.timeout(seconds):
            while not await condition():  # noqa: ASYNC110 - rows and files tell nobody that they changed
                await asyncio.sleep(LOOK_EVERY_SECONDS)
    except TimeoutError as error:
        raise TimeoutError(f"not within {seconds} s:\n{await what()}") from error
