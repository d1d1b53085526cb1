"""Follow one prompt: what comes in from the agent as events of `driver`, its end, the two clocks.

Session updates: https://agentclientprotocol.com/protocol/prompt-turn
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from acp import RequestError
from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    SessionNotification,
    TextContentBlock,
    ToolCallProgress,
    ToolCallStart,
    UsageUpdate,
)

from bot.agents.driver import (
    AgentEvent,
    AgentText,
    AgentThought,
    Limits,
    PlanChanged,
    PlanEntry,
    TimedOut,
    ToolEnded,
    ToolStarted,
    Usage,
    UsageReported,
)


@dataclass(frozen=True, slots=True)
class Answered:
    """The agent answered the prompt."""

    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Broken:
    """There will be no answer."""

    error: RequestError | ConnectionError


@dataclass(frozen=True, slots=True)
class Stopped:
    """Somebody wants the prompt stopped."""


Inbox = asyncio.Queue[SessionNotification | Answered | Broken | Stopped]


async def follow(
    inbox: Inbox, limits: Limits, progress: "PromptProgress", on_event: Callable[[AgentEvent], None]
) -> Answered | Broken | Stopped | TimedOut:
    """Take what comes in until the prompt ends, is stopped, or a clock runs out; the loop's time counts."""
    clock = asyncio.get_running_loop().time
    total_at = clock() + limits.total_seconds
    while True:
        limit: tuple[Literal["total", "idle"], float] = ("total", limits.total_seconds)
        until = total_at
        idle_at = clock() + limits.idle_seconds
        if idle_at < total_at and not progress.tool_is_open:
            limit, until = ("idle", limits.idle_seconds), idle_at
        if clock() >= until:
            return TimedOut(*limit)
        try:
            async with asyncio.timeout_at(until):
                item = await inbox.get()
        except TimeoutError:
            return TimedOut(*limit)
        if not isinstance(item, SessionNotification):
            return item
        for event in progress.apply(item):
            on_event(event)


class PromptProgress:
    """What one prompt has brought so far: its text, its open tool calls, its usage."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._after_tool = False
        self._open: dict[str, str] = {}
        self._ended: set[str] = set()
        self._usage: Usage | None = None

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def tool_is_open(self) -> bool:
        return bool(self._open)

    def usage(self, answer: Mapping[str, Any]) -> Usage | None:
        """The usage told in updates, completed by that of the answer to `session/prompt`."""
        told = answer.get("usage")
        if not isinstance(told, dict):
            return self._usage_in_meta(answer)
        return replace(
            self._usage or Usage(),
            input_tokens=_count(told.get("inputTokens")),
            output_tokens=_count(told.get("outputTokens")),
            total_tokens=_count(told.get("totalTokens")),
        )

    def _usage_in_meta(self, answer: Mapping[str, Any]) -> Usage | None:
        """Gemini tells its tokens beside the protocol, in `_meta.quota.token_count`."""
        told: Any = answer
        for key in ("_meta", "quota", "token_count"):
            told = told.get(key) if isinstance(told, dict) else None
        if not isinstance(told, dict):
            return self._usage
        inputs, outputs = _count(told.get("input_tokens")), _count(told.get("output_tokens"))
        total = None if inputs is None or outputs is None else inputs + outputs
        return replace(self._usage or Usage(), input_tokens=inputs, output_tokens=outputs, total_tokens=total)

    def apply(self, notification: SessionNotification) -> Iterator[AgentEvent]:
        """Take in one update and give the events it means, if any."""
        match notification.update:
            case AgentMessageChunk(content=TextContentBlock(text=text)):
                yield from self._say(text)
            case AgentThoughtChunk(content=TextContentBlock(text=text)):
                yield AgentThought(text)
            case AgentPlanUpdate(entries=entries):
                yield PlanChanged(tuple(PlanEntry(entry.content, entry.status) for entry in entries))
            case ToolCallStart() | ToolCallProgress() as call:
                yield from self._tool(call)
            case UsageUpdate(used=used, size=size, cost=cost):
                amount, currency = (cost.amount, cost.currency) if cost else (None, None)
                self._usage = replace(self._usage or Usage(), session_cost=amount, currency=currency)
                yield UsageReported(used, size, amount, currency)
            case _:
                pass

    def _say(self, text: str) -> Iterator[AgentText]:
        if not text:
            return
        # Agents send what they say before and after a tool call as separate messages without a break.
        if self._after_tool and self._pieces and not self._pieces[-1][-1].isspace() and not text[0].isspace():
            text = "\n\n" + text
        self._after_tool = False
        self._pieces.append(text)
        yield AgentText(text)

    def _tool(self, call: ToolCallStart | ToolCallProgress) -> Iterator[AgentEvent]:
        call_id = call.tool_call_id
        if call_id in self._ended:
            return
        if call_id not in self._open:
            self._after_tool = True
            self._open[call_id] = call.title or call_id
            yield ToolStarted(call_id, self._open[call_id], call.kind or "other")
        elif call.title:
            self._open[call_id] = call.title
        if call.status in ("completed", "failed"):
            self._ended.add(call_id)
            yield ToolEnded(call_id, self._open.pop(call_id), call.status == "completed")


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None
