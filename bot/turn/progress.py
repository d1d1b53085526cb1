"""The progress of a turn that runs, on the thread and in rows: first slow preparations, then the agent's plan."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import assert_never

from bot.agents.driver import AgentEvent, PlanChanged, Said, ToolEnded, ToolPrinted, ToolStarted, Usage
from bot.model import ThreadRef
from bot.sandbox.net.model_answers import ModelAnswers, is_model_name
from bot.store import turns
from bot.store.database import DATABASE_AWAY, Pool
from bot.store.failures import database_failed
from bot.store.turns import ClaimedTurn, ClaimLostError, Use
from bot.thread import thread_comments, tracking
from bot.thread.commit_message import split_subject
from bot.thread.formatting import plain
from bot.thread.tracking import PlanEntry

# Most agents start sooner, and that is then the first news.
QUIET_SECONDS = 3.0
# The earlier steps of a longer turn are forgotten.
MAX_STEPS = 200
SAVE_EVERY_SECONDS = 1.0
MAX_WORDS_CHARACTERS = 600
MAX_OUTPUT_CHARACTERS = 8 * 1024
_MOST_UNSAVED_CHARACTERS = 256 * 1024
# Keep more than is shown, so that a secret that is cut in two is still recognised.
_HEARD_CHARACTERS = 16 * 1024
# A figure above these is wrong.
MOST_TOKENS = 10**9
MOST_DOLLARS = 1e6
_FIRST_WORD = re.compile(r"\A\S*")


class Progress:
    """The phase, plan and steps of a turn; `shown` keeps the tracking comment up to date with them.

    `earlier_steps` and `earlier_use` are of the runs of the turn before.
    """

    def __init__(
        self, redact: Callable[[str], str], earlier_steps: Sequence[str] = (), earlier_use: Use | None = None
    ) -> None:
        self._redact = redact
        self._earlier_use = earlier_use or Use()
        self.use = self._earlier_use
        self.usage = Usage()
        """As the agent tells it, of this prompt."""
        self.cost_changed = asyncio.Event()
        self.plan: tuple[PlanEntry, ...] = ()
        self._steps = dict(enumerate(earlier_steps, 1))
        """By place, the last ones."""
        self._unsaved: dict[int, str] = {}
        self._places: dict[str, int] = {}
        """The places of the calls that are open."""
        self._outputs: dict[int, str] = {}
        """As they came, until they are written."""
        self._heard = ""
        self.phase: str | None = None
        self.added: tuple[str, ...] = ()
        """What was added to the request while the agent works, a line of Markdown each."""
        self._is_saved = True
        self._to_save = asyncio.Event()
        self._changed = asyncio.Event()
        self._phase_changed = asyncio.Event()
        self._agent_began = asyncio.Event()

    def enter(self, phase: str | None) -> None:
        """Set what happens while no agent works, as the tracking comment words it."""
        if phase != self.phase:
            self.phase = phase
            self._phase_changed.set()
            self._save_soon()
            self._changed.set()

    def add(self, words: str) -> None:
        """Show within seconds that the agent was told more."""
        self.added = (*self.added, words)
        self._phase_changed.set()
        self._changed.set()

    def agent_begins(self) -> None:
        """Show that the agent has started."""
        self.enter(None)
        self._agent_began.set()
        self._changed.set()

    def agent_goes_on(self) -> None:
        """Show that the agent works on another prompt: what it used until now is counted."""
        self._earlier_use, self.usage = self.use, replace(self.usage, tokens=None)
        self.enter(None)

    async def until_agent_begins(self) -> None:
        """Wait until the agent has started."""
        await self._agent_began.wait()

    def model_answered(self, answers: ModelAnswers) -> None:
        """Show whether the agent waits for its model, and note which it is."""
        if self.agent_began:
            self.enter(tracking.MODEL_REFUSES if answers.refuses else None)
        self._set_use(answers.model)

    def _set_use(self, model: str | None) -> None:
        before, tokens = self._earlier_use.tokens, self.usage.tokens
        both = (before or 0) + tokens if tokens else before
        self.use = replace(self.use, tokens=both, model=model or self.use.model)
        self._save_soon()

    @property
    def steps(self) -> list[str]:
        """The last steps of the agent."""
        return list(self._steps.values())

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
            case ToolStarted(title=title, call=call):
                self._end_words()
                self._places[call] = self._set_step(self._redact(title))
            case ToolPrinted(call=call, output=output):
                whole = _whole_words(output)
                if whole.strip() and (place := self._places.get(call)) is not None and self._has_room:
                    self._outputs[place] = whole
                    self._to_save.set()
                return  # the thread shows no output
            case ToolEnded(title=title, ok=ok, call=call, output=output):
                title = self._redact(title)
                place = self._set_step(title if ok else f"{title}{tracking.STEP_FAILED}", self._places.pop(call, None))
                if output.strip() and self._has_room:
                    self._outputs[place] = output
            case Usage(tokens=tokens, session_cost_usd=cost, model=model):
                known = self.usage
                self.usage = Usage(
                    tokens if tokens is not None and 0 <= tokens <= MOST_TOKENS else known.tokens,
                    cost if cost is not None and 0 <= cost <= MOST_DOLLARS else known.session_cost_usd,
                )
                if cost is not None:
                    self.cost_changed.set()
                self._set_use(self.use.model or (model if model and is_model_name(model) else None))
                return
            case Said(text=text):
                self._heard = (self._heard + text)[-_HEARD_CHARACTERS:]
                self._save_soon()
                return  # the thread gets the answer
            case _:
                assert_never(event)
        self._changed.set()

    @property
    def _has_room(self) -> bool:
        return sum(map(len, self._outputs.values())) < _MOST_UNSAVED_CHARACTERS

    def _end_words(self) -> None:
        """Take what was said for whole: no more of its last word follows."""
        if self._heard and not self._heard[-1].isspace():
            self._heard += "\n"
            self._save_soon()

    def _save_soon(self) -> None:
        self._is_saved = False
        self._to_save.set()

    def _set_step(self, words: str, place: int | None = None) -> int:
        """Set the words of a step, by default of the next one; return its place."""
        at = place or max(self._steps, default=0) + 1
        self._steps[at] = words
        for forgotten in list(self._steps)[:-MAX_STEPS]:
            del self._steps[forgotten]
        if at in self._unsaved or len(self._unsaved) < MAX_STEPS:
            self._unsaved[at] = words
            self._to_save.set()
        return at

    @asynccontextmanager
    async def shown(
        self, pool: Pool, thread_ref: ThreadRef, turn: ClaimedTurn, clock: Callable[[], datetime]
    ) -> AsyncIterator[None]:
        """Show the progress on the thread, if one asked, while the context lasts: at once when the agent starts, a
        phase before that only if it takes a while, then at the pace that GitHub allows.
        """
        tasks = [asyncio.create_task(self._save_all(pool, turn))]
        if thread_ref.conversation_id:
            tasks.append(asyncio.create_task(self._show(pool, thread_ref, turn, clock)))
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
            await self._save(pool, turn)
            await asyncio.sleep(SAVE_EVERY_SECONDS)

    async def _save(self, pool: Pool, turn: ClaimedTurn) -> None:
        """Write what is new into rows, for the operator. What is not known to be written is written again later."""
        printed, is_saved = dict(self._outputs), self._is_saved
        steps = {at: self._steps[at] for at in printed if at in self._steps} | self._unsaved
        outputs = await asyncio.to_thread(_shortened_all, printed, self._redact) if printed else {}
        try:
            if steps:
                shown = [outputs.get(at) for at in steps]
                await turns.save_steps(pool, turn.claim, list(steps), list(steps.values()), shown)
                self._unsaved = {at: words for at, words in self._unsaved.items() if steps.get(at) != words}
                self._outputs = {at: text for at, text in self._outputs.items() if printed.get(at) != text}
            if not is_saved:
                self._is_saved = True
                plan = [f"{entry.state} {entry.text}" for entry in self.plan]
                words = latest_words(self._heard, self._redact)
                phase = None if self.phase is None else self._redact(plain(self.phase))
                await turns.save_progress(pool, turn.claim, plan, words, phase, self.use.tokens, self.use.model)
        except DATABASE_AWAY as problem:
            self._is_saved = is_saved
            database_failed(problem)

    async def _show(self, pool: Pool, thread_ref: ThreadRef, turn: ClaimedTurn, clock: Callable[[], datetime]) -> None:
        last_edit_at: datetime | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(QUIET_SECONDS):
                await self._agent_began.wait()
        while True:
            self._changed.clear()
            now, due = clock(), None
            # A new phase is told within seconds, also in a long turn.
            paced_since = now if self._phase_changed.is_set() else turn.started_at
            try:
                async with pool.acquire() as connection, connection.transaction():
                    due = await thread_comments.next_progress(connection, thread_ref, paced_since, last_edit_at, now)
                    if due is not None and due <= clock():
                        await turns.stop_requested(connection, turn.claim)
                        content = tracking.running(self.plan, self.steps, now - turn.started_at, self.phase, self.added)
                        await thread_comments.track(connection, thread_ref, turn.id, turn.ask.target, content)
                        last_edit_at, due = now, None
                        self._phase_changed.clear()
            except ClaimLostError:
                return
            except DATABASE_AWAY as problem:
                database_failed(problem)
                due = None
            seconds = 0 if due is None else (due - clock()).total_seconds()
            if due is None:
                await self._changed.wait()
            elif self._phase_changed.is_set():
                await asyncio.sleep(seconds)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._phase_changed.wait()


def _shortened_all(printed: Mapping[int, str], redact: Callable[[str], str]) -> dict[int, str]:
    return {at: shortened(text, redact) for at, text in printed.items()}


def shortened(output: str, redact: Callable[[str], str]) -> str:
    """Return the beginning and the end of what a tool printed, without secrets: it is cut after they are gone."""
    clean = redact(output)
    left_out = len(clean) - MAX_OUTPUT_CHARACTERS
    if left_out <= 0:
        return clean
    begins = MAX_OUTPUT_CHARACTERS // 4
    return f"{clean[:begins]}\n… {left_out:,} characters …\n{clean[begins + left_out :]}"


def _whole_words(text: str) -> str:
    """Return the text without its last word, which may be half a secret until more follows it."""
    return text[: max(text.rfind(space) for space in " \n\t") + 1]


def latest_words(heard: str, redact: Callable[[str], str]) -> str:
    """Return the end of what an agent says, without secrets and without the line for its commit.

    The first word may be what is left of a secret.
    """
    whole = _whole_words(heard)
    if len(heard) >= _HEARD_CHARACTERS:
        whole = _FIRST_WORD.sub("", whole)
    words = split_subject(redact(whole).strip())[0].strip()
    return words if len(words) <= MAX_WORDS_CHARACTERS else "…" + words[1 - MAX_WORDS_CHARACTERS :]
