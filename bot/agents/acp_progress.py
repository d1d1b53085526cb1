"""Translate what an ACP agent sends during a prompt.

Session updates: https://agentclientprotocol.com/protocol/prompt-turn
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    SessionNotification,
    TextContentBlock,
    ToolCallProgress,
    ToolCallStart,
    UsageUpdate,
)

from bot.agents.driver import AgentEvent, Cancelled, Failed, Outcome, Usage
from bot.agents.prompt_loop import PromptProgress
from bot.messages import reasons
from bot.messages.questions import Question
from bot.messages.tracking import PlanEntry


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to `session/prompt`."""

    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FormAsked:
    """A form that a person should fill in, while the agent waits for it."""

    message: str
    fields: Mapping[str, Any]


Item = SessionNotification | Answered | FormAsked


class AcpProgress(PromptProgress[Item]):
    """See `PromptProgress`."""

    def __init__(self) -> None:
        super().__init__()
        self._after_tool = False
        self._usage: Usage | None = None

    def events(self, item: Item) -> Iterator[AgentEvent]:
        if isinstance(item, FormAsked):
            self._questions = _questions(item)
        if not isinstance(item, SessionNotification):
            return
        match item.update:
            case AgentMessageChunk(content=TextContentBlock(text=text)):
                yield from self._say(text, new_paragraph=self._after_tool)
                self._after_tool = self._after_tool and not text
            case AgentPlanUpdate(entries=entries):
                yield self._plan(PlanEntry(entry.content, entry.status) for entry in entries)
            case ToolCallStart() | ToolCallProgress() as call:
                yield from self._tool(call)
            case UsageUpdate(cost=cost) if cost is not None:
                self._usage = replace(self._usage or Usage(), session_cost=cost.amount, currency=cost.currency)
            case _:
                pass

    def end(self, item: Item) -> Outcome | None:
        """Return what a stop reason means: https://agentclientprotocol.com/protocol/prompt-turn#stop-reasons

        A question ends the prompt, though the agent would wait for an answer.
        """
        if isinstance(item, FormAsked):
            return self._completed(self._usage)
        if not isinstance(item, Answered):
            return None
        match item.result.get("stopReason"):
            case "cancelled":
                return Cancelled()
            case "end_turn":
                return self._completed(self._usage_with(item.result))
            case other:
                return Failed(reasons.agent_stopped(str(other)))

    def _tool(self, call: ToolCallStart | ToolCallProgress) -> Iterator[AgentEvent]:
        call_id = call.tool_call_id
        for started in self._tool_started(call_id, call.title or self._open_calls.get(call_id, call_id)):
            self._after_tool = True
            yield started
        if call.status in ("completed", "failed"):
            yield from self._tool_ended(call_id, ok=call.status == "completed")

    def _usage_with(self, answer: Mapping[str, Any]) -> Usage | None:
        """Return the cost told in updates with the tokens told in the answer."""
        told, names = answer.get("usage"), ("inputTokens", "outputTokens", "totalTokens")
        if not isinstance(told, dict):
            # Gemini reports its tokens outside the protocol.
            told = _nested(answer, "_meta", "quota", "token_count")
            names = ("input_tokens", "output_tokens", "total_tokens")
        if not isinstance(told, dict):
            return self._usage
        counts = (value if isinstance(value := told.get(name), int) else None for name in names)
        inputs, outputs, total = counts
        return replace(self._usage or Usage(), input_tokens=inputs, output_tokens=outputs, total_tokens=total)


def _questions(asked: FormAsked) -> tuple[Question, ...]:
    """Return a form's choices as questions; of a single one the text is the form's message."""
    choices = [(field, _options(field)) for field in asked.fields.values() if isinstance(field, dict)]
    choices = [(field, options) for field, options in choices if options]
    if len(choices) < 2:
        options = choices[0][1] if choices else ()
        return (Question(asked.message, options, many=bool(choices) and choices[0][0].get("type") == "array"),)
    return tuple(
        Question(str(field.get("description") or field.get("title")), options, many=field.get("type") == "array")
        for field, options in choices
    )


def _options(field: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the choices of a form's field: https://agentclientprotocol.com/protocol/elicitation"""
    items = field.get("items")
    source = items if isinstance(items, dict) else field
    listed = source.get("oneOf") or source.get("anyOf") or source.get("enum")
    return tuple(_option(one) for one in listed) if isinstance(listed, list) else ()


def _option(one: object) -> tuple[str, str]:
    if isinstance(one, dict):
        return str(one.get("title") or one.get("const") or ""), str(one.get("description") or "")
    return str(one), ""


def _nested(value: object, *keys: str) -> object:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
