"""The progress of a turn that runs, on the thread and in rows: first slow preparations, then the agent's plan."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import assert_never

from bot.agents.driver import (
    AgentEvent,
    PlanChanged,
    Said,
    ToolEnded,
    ToolStarted,
)
from bot.messages import tracking
from bot.messages.formatting import plain
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
MAX_WORDS_CHARACTERS = 600
# Far more than is shown: what a long secret begins with must be seen, so that its end is known for one.
_HEARD_CHARACTERS = 16 * 1024
_FIRST_WORD = re.compile(r"\A\S*")


class Progress:
    """The phase, plan and steps of a turn; `shown` keeps the tracking comment up to date with them."""

    def __init__(self, redact: Callable[[str], str], earlier_steps: Sequence[str] = ()) -> None:
        self._redact = redact
        self.plan: tuple[PlanEntry, ...] = ()
        self.steps = list(earlier_steps[-MAX_STEPS:])
        self._heard = ""
        self.phase: str | None = None
        self.changed = asyncio.Event()
        self._unsaved: list[str] = []
        self._is_saved = True
        self._to_save = asyncio.Event()
        self._agent_began = asyncio.Event()

    def enter(self, phase: str) -> None:
        """Set what happens before the agent starts, as the tracking comment words it."""
        if phase != self.phase:
            self.phase = phase
            self._save_soon()
            self.changed.set()

    def agent_begins(self) -> None:
        """Show that the agent has started."""
        self.phase = None
        self._save_soon()
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
                self._save_soon()
            case ToolStarted(title=title):
                self._end_words()
                self._add_step(self._redact(title))
            case ToolEnded(title=title, ok=ok):
                if not ok:
                    self._add_step(f"{self._redact(title)} (failed)")
            case Said(text=text):
                self._heard = (self._heard + text)[-_HEARD_CHARACTERS:]
                self._save_soon()
                return  # the thread gets the answer
            case _:
                assert_never(event)
        self.changed.set()

    def _end_words(self) -> None:
        """Take what was said for whole: no more of its last word follows."""
        if self._heard and not self._heard[-1].isspace():
            self._heard += "\n"
            self._save_soon()

    def _save_soon(self) -> None:
        self._is_saved = False
        self._to_save.set()

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
            self._end_words()
            await self._save(pool, turn)

    async def _save_all(self, pool: Pool, turn: ClaimedTurn) -> None:
        while True:
            await self._to_save.wait()
            self._to_save.clear()
            saving = asyncio.create_task(self._save(pool, turn))
            try:
                await asyncio.shield(saving)
            except asyncio.CancelledError:
                await saving  # it may be committed already, and would be written twice
                raise
            await asyncio.sleep(SAVE_EVERY_SECONDS)

    async def _save(self, pool: Pool, turn: ClaimedTurn) -> None:
        """Write what is new into rows, for the operator. What an outage of the database delays comes later."""
        steps, is_saved, self._is_saved = tuple(self._unsaved), self._is_saved, True
        try:
            async with pool.acquire() as connection:
                if steps:
                    await turns.add_steps(connection, turn.claim, steps)
                    del self._unsaved[: len(steps)]
                if not is_saved:
                    plan = [f"{entry.state} {entry.text}" for entry in self.plan]
                    words = latest_words(self._heard, self._redact)
                    phase = None if self.phase is None else self._redact(plain(self.phase))
                    await turns.save_progress(connection, turn.claim, plan, words, phase)
        except DATABASE_AWAY as problem:
            self._is_saved = is_saved
            database_failed(problem)

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


def latest_words(heard: str, redact: Callable[[str], str]) -> str:
    """Return the end of what an agent says, without secrets. The last word may be half a secret until more follows it,
    and the first one may be what is left of one.
    """
    whole = heard[: max(heard.rfind(space) for space in " \n\t") + 1]
    if len(heard) >= _HEARD_CHARACTERS:
        whole = _FIRST_WORD.sub("", whole)
    words = redact(whole).strip()
    return words if len(words) <= MAX_WORDS_CHARACTERS else "…" + words[1 - MAX_WORDS_CHARACTERS :]
