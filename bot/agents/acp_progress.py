"""Translate what an ACP agent sends during a prompt.

Session updates: https://agentclientprotocol.com/protocol/prompt-turn
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from acp import schema

from bot.agents.driver import AgentEvent, Cancelled, Failed, Outcome, Usage
from bot.agents.prompt_loop import PromptProgress
from bot.thread import reasons
from bot.thread.questions import Question
from bot.thread.tracking import PlanEntry

_RAW_OUTPUTS = ("formatted_output", "aggregated_output", "output", "stdout")


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to `session/prompt`."""

    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FormAsked:
    """A form that a person should fill in, while the agent waits for it."""

    message: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlanProposed:
    """A plan that a person should approve, while the agent waits for that."""

    text: str


Item = schema.SessionNotification | Answered | FormAsked | PlanProposed
ToolCall = schema.ToolCallStart | schema.ToolCallUpdate


class AcpProgress(PromptProgress[Item]):
    """See `PromptProgress`."""

    def __init__(self) -> None:
        super().__init__()
        self._after_tool = False
        self._usage = Usage()
        self._has_failed = False

    def events(self, item: Item) -> Iterator[AgentEvent]:
        if isinstance(item, FormAsked):
            self._questions = _questions(item)
        elif isinstance(item, PlanProposed):
            self.propose(item.text)
        elif isinstance(item, Answered):
            used = item.result.get("usage")
            tokens = used.get("totalTokens") if isinstance(used, dict) else None
            if isinstance(tokens, int):
                yield from self._used(replace(self._usage, tokens=tokens))
        if not isinstance(item, schema.SessionNotification):
            return
        match item.update:
            case schema.AgentMessageChunk(content=schema.TextContentBlock(text=text)):
                yield from self._say(text, new_paragraph=self._after_tool)
                self._after_tool = self._after_tool and not text
            case schema.AgentPlanUpdate(entries=entries):
                yield self._plan(PlanEntry(entry.content, entry.status) for entry in entries)
            case schema.ToolCallStart() | schema.ToolCallProgress() as call:
                yield from self._tool(call)
            case schema.SessionInfoUpdate(field_meta={"codex": {"threadStatus": {"type": str(status)}}}):
                self._has_failed = status == "systemError"
            case schema.UsageUpdate(cost=cost) if cost is not None and cost.currency == "USD":
                yield from self._used(replace(self._usage, session_cost_usd=cost.amount))
            case _:
                pass

    def end(self, item: Item) -> Outcome | None:
        """Return what a stop reason means: https://agentclientprotocol.com/protocol/prompt-turn#stop-reasons

        A question and a plan end the prompt, though the agent would wait for an answer.
        """
        if isinstance(item, FormAsked | PlanProposed):
            return self._completed()
        if not isinstance(item, Answered):
            return None
        match item.result.get("stopReason"):
            case "cancelled":
                return Cancelled()
            case "end_turn" if self._has_failed:  # Codex ends well with the error as the last words of its answer
                return Failed(reasons.agent_error(self._pieces[-1].strip() if self._pieces else ""))
            case "end_turn":
                return self._completed()
            case other:
                return Failed(reasons.agent_stopped(str(other)))

    def _tool(self, call: schema.ToolCallStart | schema.ToolCallProgress) -> Iterator[AgentEvent]:
        call_id = call.tool_call_id
        for started in self._tool_started(call_id, call.title or self._open_calls.get(call_id, call_id)):
            self._after_tool = True
            yield started
        if call.status in ("completed", "failed"):
            yield from self._tool_ended(call_id, ok=call.status == "completed", output=_printed(call))
        else:
            yield from self._tool_printed(call_id, _printed(call))

    def _used(self, usage: Usage) -> Iterator[Usage]:
        if usage != self._usage:
            self._usage = usage
            yield usage


def _printed(call: schema.ToolCallStart | schema.ToolCallProgress) -> str:
    """Return the text of a call's content, or else of its raw output, whose form is the agent's own."""
    text, raw = shown_text(call), call.raw_output
    if not text and isinstance(raw, dict):
        raw = next((raw[name] for name in _RAW_OUTPUTS if isinstance(raw.get(name), str)), None)
    return text or (raw if isinstance(raw, str) else "")


def shown_text(call: ToolCall) -> str:
    """Return the text of a call's content."""
    blocks = [one.content for one in call.content or () if isinstance(one, schema.ContentToolCallContent)]
    return "\n".join(block.text for block in blocks if isinstance(block, schema.TextContentBlock))


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
