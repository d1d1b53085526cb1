"""Time in scenarios: a clock that tests move."""

import asyncio
from datetime import UTC, datetime, timedelta


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
