"""Follow one prompt until its end: the loop, its clocks and its budgets, which are the same for every agent."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Literal, TypeVar

from bot.agents.driver import (
    AgentDone,
    AgentEvent,
    Cancelled,
    Failed,
    Outcome,
    PlanChanged,
    PromptLimits,
    Said,
    TimedOut,
    ToolEnded,
    ToolStarted,
    Usage,
)
from bot.messages import reasons
from bot.messages.questions import Question, question_back
from bot.messages.tracking import PlanEntry

MAX_ANSWER_CHARACTERS = 256 * 1024
MAX_PLAN_ENTRIES = 50
MAX_TITLE_CHARACTERS = 200
# Tool calls that are remembered at the same time, open or ended.
MAX_TOOL_CALLS = 1000
# What a prompt takes in waits here; an agent that is faster than the loop waits too.
INBOX_ITEMS = 256

Item = TypeVar("Item")


class PromptProgress(ABC, Generic[Item]):
    """The state of one prompt: its answer so far and its open tool calls, both within their limits.

    A subclass translates the items of one protocol.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._characters = 0
        self._open_calls: dict[str, str] = {}
        self._ended_calls: dict[str, None] = {}
        self._questions: tuple[Question, ...] = ()

    @abstractmethod
    def events(self, item: Item) -> Iterator[AgentEvent]:
        """Take in one item and return the events it means, if any."""

    @abstractmethod
    def end(self, item: Item) -> Outcome | None:
        """Return how the prompt ended; None if the item does not end it."""

    def is_work(self, item: Item) -> bool:
        """Return whether the item shows that the agent works."""
        return True

    @property
    def tool_is_open(self) -> bool:
        return bool(self._open_calls)

    @property
    def answer(self) -> str:
        """The answer so far, or the question that ends it. A long one is cut, and its end says so."""
        text = "".join(self._pieces)
        left_out = self._characters - len(text)
        text = f"{text}\n\n[{left_out} more characters were left out.]" if left_out else text
        return question_back(self._questions, text) if self._questions else text

    def _completed(self, usage: Usage | None) -> AgentDone | Failed:
        return AgentDone(self.answer, usage) if self.answer.strip() else Failed(reasons.NO_ANSWER)

    def _say(self, text: str, *, new_paragraph: bool) -> Iterator[Said]:
        """Add text. Agents send the texts before and after a tool call as separate messages without a line break."""
        if not text:
            return
        if new_paragraph and self._pieces and not self._pieces[-1][-1].isspace() and not text[0].isspace():
            text = "\n\n" + text
        kept = text[: max(0, MAX_ANSWER_CHARACTERS - self._characters)]
        self._characters += len(text)
        if kept:
            self._pieces.append(kept)
            yield Said(kept)

    def _plan(self, entries: Iterable[PlanEntry]) -> PlanChanged:
        kept = list(entries)[:MAX_PLAN_ENTRIES]
        return PlanChanged(tuple(PlanEntry(entry.text[:MAX_TITLE_CHARACTERS], entry.state) for entry in kept))

    def _tool_started(self, call_id: str, title: str) -> Iterator[ToolStarted]:
        """Note an open call. A call that is open already gets the title."""
        call_id, title = call_id[:MAX_TITLE_CHARACTERS], title[:MAX_TITLE_CHARACTERS]
        known = call_id in self._open_calls
        if call_id in self._ended_calls or (not known and len(self._open_calls) >= MAX_TOOL_CALLS):
            return
        self._open_calls[call_id] = title
        if not known:
            yield ToolStarted(title)

    def _tool_ended(self, call_id: str, *, ok: bool) -> Iterator[ToolEnded]:
        call_id = call_id[:MAX_TITLE_CHARACTERS]
        title = self._open_calls.pop(call_id, None)
        if title is None:
            return
        self._ended_calls[call_id] = None
        if len(self._ended_calls) > MAX_TOOL_CALLS:
            del self._ended_calls[next(iter(self._ended_calls))]
        yield ToolEnded(title, ok)


async def follow(
    inbox: asyncio.Queue[Item | Failed],
    limits: PromptLimits,
    stop: asyncio.Event,
    progress: PromptProgress[Item],
    on_event: Callable[[AgentEvent], None],
) -> Outcome:
    """Report the events of a prompt until it ends, `stop` is set, or a limit is reached. The loop's time counts.

    The idle clock starts again with every sign of work and pauses while a tool call is open.
    """
    clock = asyncio.get_running_loop().time
    total_at = clock() + limits.total_seconds
    idle_at = clock() + limits.idle_seconds
    stopping = asyncio.create_task(stop.wait())
    try:
        while True:
            if stop.is_set():
                return Cancelled()
            idle_counts = idle_at < total_at and not progress.tool_is_open
            until = idle_at if idle_counts else total_at
            if clock() >= until:
                kind: Literal["idle", "total"] = "idle" if idle_counts else "total"
                return TimedOut(kind, limits.idle_seconds if idle_counts else limits.total_seconds)
            item = await _next(inbox, stopping, until - clock())
            if item is None:
                continue
            if isinstance(item, Failed):
                return item
            if progress.is_work(item):
                idle_at = clock() + limits.idle_seconds
            for event in progress.events(item):
                on_event(event)
            if (end := progress.end(item)) is not None:
                return end
    finally:
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)


async def _next(
    inbox: asyncio.Queue[Item | Failed], stopping: asyncio.Task[Literal[True]], seconds: float
) -> Item | Failed | None:
    """Return the next item; None after a stop or `seconds` without one."""
    if not inbox.empty():
        return inbox.get_nowait()
    getting = asyncio.create_task(inbox.get())
    try:
        await asyncio.wait({getting, stopping}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return getting.result() if getting.done() else None
    finally:
        getting.cancel()
        await asyncio.gather(getting, return_exceptions=True)
