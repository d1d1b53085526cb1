"""The tracking comment while a turn runs: first slow preparations, then the agent's plan."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import assert_never

from bot.agents.driver import (
    AgentEvent,
    PlanChanged,
    ToolEnded,
    ToolStarted,
)
from bot.messages import tracking
from bot.messages.tracking import PlanEntry
from bot.model import ThreadRef
from bot.reply import thread_comments
from bot.store import turns
from bot.store.database import DATABASE_AWAY, Pool
from bot.store.outage import database_failed
from bot.store.turns import ClaimedTurn, ClaimLostError

# Most agents start sooner, and that is then the first news.
QUIET_SECONDS = 3.0
# The earlier steps of a longer turn are forgotten.
MAX_STEPS = 200
SAVE_EVERY_SECONDS = 1.0


class Progress:
    """The phase, plan and steps of a turn; `shown` keeps the tracking comment up to date with them."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact
        self.plan: tuple[PlanEntry, ...] = ()
        self.steps: list[str] = []
        self.phase: str | None = None
        self.changed = asyncio.Event()
        self._unsaved: list[str] = []
        self._to_save = asyncio.Event()
        self._agent_began = asyncio.Event()

    def enter(self, phase: str) -> None:
        """Set what happens before the agent starts, as the tracking comment words it."""
        if phase != self.phase:
            self.phase = phase
            self.changed.set()

    def agent_begins(self) -> None:
        """Show that the agent has started."""
        self.phase = None
        self._agent_began.set()
        self.changed.set()

    @property
    def agent_began(self) -> bool:
        """Whether the agent has started."""
        return self._agent_began.is_set()

    def note(self, event: AgentEvent) -> None:
        """Take in one event of the agent."""
        match event:
            case PlanChanged(entries=entries):
                self.plan = tuple(replace(entry, text=self._redact(entry.text)) for entry in entries)
            case ToolStarted(title=title):
                self._add_step(self._redact(title))
            case ToolEnded(title=title, ok=ok):
                if not ok:
                    self._add_step(f"{self._redact(title)} (failed)")
            case _:
                assert_never(event)
        self.changed.set()

    def _add_step(self, step: str) -> None:
        self.steps.append(step)
        del self.steps[:-MAX_STEPS]
        if len(self._unsaved) < MAX_STEPS:
            self._unsaved.append(step)
            self._to_save.set()

    @asynccontextmanager
    async def shown(
        self, pool: Pool, thread_ref: ThreadRef, turn: ClaimedTurn, clock: Callable[[], datetime]
    ) -> AsyncIterator[None]:
        """Show the progress on the thread while the context lasts: at once when the agent starts, a phase before that
        only if it takes a while, then at the pace that GitHub allows.
        """
        tasks = [
            asyncio.create_task(self._show(pool, thread_ref, turn, clock)),
            asyncio.create_task(self._save_all(pool, turn)),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._save(pool, turn)

    async def _save_all(self, pool: Pool, turn: ClaimedTurn) -> None:
        while True:
            await self._to_save.wait()
            self._to_save.clear()
            await self._save(pool, turn)
            await asyncio.sleep(SAVE_EVERY_SECONDS)

    async def _save(self, pool: Pool, turn: ClaimedTurn) -> None:
        """Write the new steps into rows, for the operator. What an outage of the database delays comes later."""
        steps = tuple(self._unsaved)
        if not steps:
            return
        try:
            async with pool.acquire() as connection:
                await turns.add_steps(connection, turn.claim, steps)
        except DATABASE_AWAY as problem:
            database_failed(problem)
        else:
            del self._unsaved[: len(steps)]

    async def _show(self, pool: Pool, thread_ref: ThreadRef, turn: ClaimedTurn, clock: Callable[[], datetime]) -> None:
        last_edit_at: datetime | None = None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._agent_began.wait(), QUIET_SECONDS)
        while True:
            self.changed.clear()
            try:
                async with pool.acquire() as connection, connection.transaction():
                    due = await thread_comments.next_progress(
                        connection, thread_ref, turn.started_at, last_edit_at, clock()
                    )
                    if due is not None and due <= clock():
                        await turns.stop_requested(connection, turn.claim)
                        content = tracking.running(self.plan, self.steps, clock() - turn.started_at, self.phase)
                        await thread_comments.track(connection, thread_ref, turn.id, turn.target, content)
                        last_edit_at = clock()
                        due = None
            except ClaimLostError:
                return
            except DATABASE_AWAY as problem:
                database_failed(problem)
                due = None
            if due is None:
                await self.changed.wait()
            else:
                await asyncio.sleep((due - clock()).total_seconds())
