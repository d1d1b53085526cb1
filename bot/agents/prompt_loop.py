"""What is the same for every agent: how a session is opened, and one prompt with its clocks and its budgets."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Generic, TypeAlias, TypeVar

import structlog

from bot.agents import driver
from bot.agents.driver import AgentEvent, Block, CannotOpenError, Failed, Outcome, PromptLimits, TimedOut
from bot.agents.process import AgentProcess
from bot.tasks import concurrently, unless_stopped
from bot.thread import reasons
from bot.thread.questions import Question, question_back
from bot.thread.tracking import PlanEntry

MAX_ANSWER_CHARACTERS = 256 * 1024
MAX_PLAN_ENTRIES = 50
MAX_TITLE_CHARACTERS = 200
# This much of the beginning and of the end of what a tool printed.
MAX_OUTPUT_CHARACTERS = 16 * 1024
# Tool calls that are remembered at the same time, open or ended.
MAX_TOOL_CALLS = 1000
# What a prompt takes in waits here; an agent that is faster than the loop waits too.
INBOX_ITEMS = 256

Item = TypeVar("Item")


class Told:
    """The agent was told something, so what it does with that may take as long as the idle limit says."""


Inbox: TypeAlias = asyncio.Queue[Item | Failed | Exception | Told]
"""What a prompt brings, in its order; an exception is raised where it is read."""
_log = structlog.get_logger()


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
        self._proposed: str | None = None

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
        """The answer so far, or the plan or the question that ends it. A long one is cut, and its end says so."""
        if self._proposed:
            return self._proposed
        text = "".join(self._pieces)
        left_out = self._characters - len(text)
        text = f"{text}\n\n[{left_out} more characters were left out.]" if left_out else text
        return question_back(self._questions, text) if self._questions else text

    def propose(self, plan: object) -> None:
        """Take a plan for which the agent wants a person's approval: it is the answer."""
        self._proposed = plan.strip()[:MAX_ANSWER_CHARACTERS] if isinstance(plan, str) else ""

    def _completed(self) -> driver.AgentDone | Failed:
        return driver.AgentDone(self.answer) if self.answer.strip() else Failed(reasons.NO_ANSWER)

    def _say(self, text: str, *, new_paragraph: bool) -> Iterator[driver.Said]:
        """Add text. Agents send the texts before and after a tool call as separate messages without a line break."""
        if not text:
            return
        if new_paragraph and self._pieces and not self._pieces[-1][-1].isspace() and not text[0].isspace():
            text = "\n\n" + text
        kept = text[: max(0, MAX_ANSWER_CHARACTERS - self._characters)]
        self._characters += len(text)
        if kept:
            self._pieces.append(kept)
            yield driver.Said(kept)

    def _plan(self, entries: Iterable[PlanEntry]) -> driver.PlanChanged:
        kept = list(entries)[:MAX_PLAN_ENTRIES]
        return driver.PlanChanged(tuple(PlanEntry(entry.text[:MAX_TITLE_CHARACTERS], entry.state) for entry in kept))

    def _tool_started(self, call_id: str, title: str) -> Iterator[driver.ToolStarted]:
        """Note an open call. A call that is open already gets the title."""
        call_id, title = call_id[:MAX_TITLE_CHARACTERS], title[:MAX_TITLE_CHARACTERS]
        known = call_id in self._open_calls
        if call_id in self._ended_calls or (not known and len(self._open_calls) >= MAX_TOOL_CALLS):
            return
        self._open_calls[call_id] = title
        if not known:
            yield driver.ToolStarted(title, call_id)

    def _tool_printed(self, call_id: str, output: str) -> Iterator[driver.ToolPrinted]:
        """Tell what an open call has printed so far."""
        call_id = call_id[:MAX_TITLE_CHARACTERS]
        if output and call_id in self._open_calls:
            yield driver.ToolPrinted(call_id, output[-MAX_OUTPUT_CHARACTERS:])

    def _tool_ended(self, call_id: str, *, ok: bool, output: str = "") -> Iterator[driver.ToolEnded]:
        call_id = call_id[:MAX_TITLE_CHARACTERS]
        title = self._open_calls.pop(call_id, None)
        if title is None:
            return
        self._ended_calls[call_id] = None
        if len(self._ended_calls) > MAX_TOOL_CALLS:
            del self._ended_calls[next(iter(self._ended_calls))]
        if len(output) > 2 * MAX_OUTPUT_CHARACTERS:
            output = f"{output[:MAX_OUTPUT_CHARACTERS]}\n…\n{output[-MAX_OUTPUT_CHARACTERS:]}"
        yield driver.ToolEnded(title, ok, call_id, output)


async def follow(
    inbox: Inbox[Item],
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
    while not stop.is_set():
        idle_counts = idle_at < total_at and not progress.tool_is_open
        try:
            async with asyncio.timeout_at(idle_at if idle_counts else total_at):
                item = await unless_stopped(stop, inbox.get())
        except TimeoutError:
            return TimedOut("idle", limits.idle_seconds) if idle_counts else TimedOut("total", limits.total_seconds)
        if item is None:
            break
        if isinstance(item, Failed):
            return item
        if isinstance(item, Exception):
            raise item
        if isinstance(item, Told) or progress.is_work(item):
            idle_at = clock() + limits.idle_seconds
        if isinstance(item, Told):
            continue
        for event in progress.events(item):
            on_event(event)
        if (end := progress.end(item)) is not None:
            return end
    return driver.Cancelled()


class Link(ABC, Generic[Item]):
    """The connection to a running agent, in one session. What comes before the first prompt is dropped."""

    def __init__(self, process: AgentProcess) -> None:
        self.process = process
        self.session = ""
        self.takes_messages = False
        """Whether the agent takes a text while it works on a prompt."""
        self.asked = asyncio.Event()
        """The prompt is on its way, or over."""

    @abstractmethod
    def progress(self) -> PromptProgress[Item]:
        """Return the state of a prompt that begins."""

    @abstractmethod
    async def ask(self, blocks: Sequence[Block], inbox: Inbox[Item]) -> None:
        """Send a prompt and fill the inbox until its end. An agent that does not read lets this wait."""

    @abstractmethod
    async def tell(self, text: str) -> bool:
        """Add a text to the prompt that runs; see `Driver.tell`."""

    @abstractmethod
    async def cancel(self) -> None:
        """Ask the agent to end its prompt."""

    @abstractmethod
    def unlisten(self, late: Callable[[Item], None]) -> None:
        """Permit nothing more, and give to `late` what comes from now on."""

    @abstractmethod
    async def close(self) -> None:
        """End the agent and its process group."""


class Driver(ABC, Generic[Item]):
    """One agent working for one conversation: open a session once, then prompt it, one prompt at a time."""

    def __init__(self) -> None:
        self._link: Link[Item] | None = None
        self._inbox: Inbox[Item] | None = None
        """Where the prompt that runs is told what happens."""

    @abstractmethod
    async def _open(self, resume: str | None) -> driver.SessionOpened:
        """Open a session in `_link`. Raises CannotOpenError."""

    async def open(self, resume: str | None) -> driver.SessionOpened:
        """Start the agent and continue the session `resume`, or begin one. Bounded in time. Raises CannotOpenError."""
        await self.aclose()
        try:
            return await self._open(resume)
        except CannotOpenError:
            await self.aclose()
            raise

    @property
    def is_open(self) -> bool:
        """Whether there is a session to prompt: an agent that did not end its prompt was ended."""
        return self._link is not None

    async def aclose(self) -> None:
        """End the agent and its process group. May be called twice."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def prompt(
        self, blocks: Sequence[Block], limits: PromptLimits, stop: asyncio.Event, on_event: Callable[[AgentEvent], None]
    ) -> Outcome:
        """Send one prompt and wait for its end. `on_event` is called in this task; its exceptions are raised here.

        After an agent had to be killed, call `open` before the next prompt.
        """
        link = self._link
        if link is None:
            raise RuntimeError("a prompt needs an open session")
        if stop.is_set():
            return driver.Cancelled()
        inbox: Inbox[Item] = asyncio.Queue(INBOX_ITEMS)
        self._inbox, progress = inbox, link.progress()
        link.asked.clear()

        async def ask() -> None:
            try:
                await link.ask(blocks, inbox)
            except Exception as error:  # noqa: BLE001 - it is raised where the prompt is followed
                await inbox.put(error)

        def hear_late(item: Item | Failed | Exception | Told) -> None:
            """Report what an agent that stops has used, and nothing else."""
            for event in () if isinstance(item, Failed | Exception | Told) else progress.events(item):
                if isinstance(event, driver.Usage):
                    on_event(event)

        def empty_inbox() -> None:
            while not inbox.empty():
                hear_late(inbox.get_nowait())

        async with concurrently(ask()) as asking:
            try:
                ended = await follow(inbox, limits, stop, progress, on_event)
            finally:
                self._inbox = None
                link.unlisten(hear_late)
                link.asked.set()
                empty_inbox()  # the agent's reader may wait for room
            if not asking.done():
                await self._cancel(link, asking, 0 if isinstance(ended, Failed) else limits.cancel_grace_seconds)
            empty_inbox()
        if isinstance(ended, driver.Cancelled) and not stop.is_set():
            ended = Failed(reasons.agent_stopped("cancelled"))  # some stop when they are refused a permission
        return replace(ended, stderr_tail=link.process.stderr_tail) if isinstance(ended, Failed) else ended

    @property
    def takes_messages(self) -> bool:
        """Whether `tell` can be of use."""
        return self._link is not None and self._link.takes_messages

    async def tell(self, text: str) -> bool:
        """Give the agent one more text while it works on a prompt; return whether it reads it before the prompt ends.

        False: this agent takes none, or works on no prompt any more. The text must be said in another prompt then.
        """
        link, inbox = self._link, self._inbox
        if link is None or inbox is None:
            return False
        await link.asked.wait()
        is_told = await link.tell(text)
        if is_told and not inbox.full():
            inbox.put_nowait(Told())
        return is_told

    async def _cancel(self, link: Link[Item], asking: asyncio.Task[None], grace_seconds: float) -> None:
        """Ask the agent to stop working. If it does not end its prompt within the grace, end it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds), concurrently(link.cancel()):
                await asyncio.wait({asking})
        if not asking.done():
            _log.info("agent-did-not-cancel", session=link.session)
            await self.aclose()


AgentDriver: TypeAlias = Driver[Any]
"""The driver of some agent."""
