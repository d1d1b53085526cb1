"""Follow one prompt of Claude Code: its messages as events of `driver`, its end, the two clocks.

Messages: https://docs.claude.com/en/api/agent-sdk/python#message-types
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from claude_agent_sdk import (
    AssistantMessage,
    ContentBlock,
    Message,
    ResultMessage,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)

from bot.agents.driver import (
    AgentEvent,
    AgentText,
    AgentThought,
    Completed,
    Limits,
    PlanChanged,
    PlanEntry,
    TimedOut,
    ToolEnded,
    ToolStarted,
    Usage,
    UsageReported,
)

_KINDS = {"Bash": "execute", "Edit": "edit", "Write": "edit", "NotebookEdit": "edit", "Read": "read"}
_TITLES = ("command", "file_path", "path", "pattern", "url", "query", "description")
_STATUSES: dict[str, Literal["pending", "in_progress", "completed"]] = {
    "in_progress": "in_progress",
    "completed": "completed",
}
_TITLE_CHARACTERS = 200
_REASONS = {
    "refusal": "Claude refused to go on (stop reason `refusal`).",
    "max_tokens": "Claude reached its limit of tokens (stop reason `max_tokens`).",
}
_DONE = (None, "end_turn", "stop_sequence")


@dataclass(frozen=True, slots=True)
class Broken:
    """The prompt failed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """Somebody wants the prompt stopped."""


Inbox = asyncio.Queue[Message | Broken | Stopped]


async def follow(
    inbox: Inbox, limits: Limits, progress: "ClaudeProgress", on_event: Callable[[AgentEvent], None]
) -> Completed | Broken | Stopped | TimedOut:
    """Hand on what the agent reports until the prompt ends or a limit is reached.

    The idle clock starts anew with every sign of work and stands still while a tool call is open.
    """
    clock = asyncio.get_running_loop().time
    total_at = clock() + limits.total_seconds
    idle_at = clock() + limits.idle_seconds
    while True:
        idle_counts = idle_at < total_at and not progress.tool_is_open
        until = idle_at if idle_counts else total_at
        try:
            async with asyncio.timeout_at(until):
                item = await inbox.get()
        except TimeoutError:
            return TimedOut("idle", limits.idle_seconds) if idle_counts else TimedOut("total", limits.total_seconds)
        if isinstance(item, Broken | Stopped):
            return item
        if not _waits_for_api(item):
            idle_at = clock() + limits.idle_seconds
        for event in progress.apply(item):
            on_event(event)
        if isinstance(end := progress.end(item), Completed | Broken):
            return end


class ClaudeProgress:
    """What one prompt of `session` has brought so far: its text, its open tool calls."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._pieces: list[str] = []
        self._open: dict[str, str] = {}
        self._context = 0

    @property
    def tool_is_open(self) -> bool:
        return bool(self._open)

    def apply(self, message: Message) -> Iterator[AgentEvent]:
        """The events that a message means, if any. What a sub-agent says is no part of the answer."""
        match message:
            case AssistantMessage(content=content, parent_tool_use_id=None, error=None, usage=usage):
                self._context = _all_input(usage or {})
                for block in content:
                    yield from self._block(block)
            case AssistantMessage(content=content) | UserMessage(content=list(content)):
                for block in content:
                    if isinstance(block, ToolUseBlock | ToolResultBlock):
                        yield from self._block(block)
            case ResultMessage(total_cost_usd=cost):
                yield UsageReported(self._context, _window(message), cost, "USD")
            case _:
                pass

    def end(self, message: Message) -> Completed | Broken | None:
        """How the prompt ended, if this message ends it. Some successes are errors, and some are empty."""
        match message:
            case SystemMessage(subtype="init", data={"session_id": session}) if session != self._session:
                return Broken(f"Claude went on in another session than the one it was asked for ({session}).")
            case SystemMessage(subtype="api_retry", data={"error": "authentication_failed", **rest}):
                return Broken(f"The model API does not accept the key (HTTP status {rest.get('error_status')}).")
            case ResultMessage(is_error=True) | ResultMessage(subtype="error_during_execution"):
                return Broken(f"Claude reported an error: {_words(message)}")
            case ResultMessage(stop_reason=reason) if reason in _REASONS:
                return Broken(_REASONS[reason])
            case ResultMessage(subtype="success", stop_reason=reason) if reason in _DONE:
                text = "".join(self._pieces)
                return Completed(text, _usage(message)) if text.strip() else Broken("Claude ended without an answer.")
            case ResultMessage(subtype="success", stop_reason=reason):
                return Broken(f"Claude stopped for a reason that is not known here: `{reason}`.")
            case ResultMessage(subtype=subtype):
                return Broken(f"Claude stopped: `{subtype}`. {_words(message)}")
            case _:
                return None

    def _block(self, block: ContentBlock) -> Iterator[AgentEvent]:
        match block:
            case TextBlock(text=text) if text:
                # Claude sends what it says before and after a tool call as separate messages without a break.
                if self._pieces and not self._pieces[-1][-1].isspace() and not text[0].isspace():
                    text = "\n\n" + text
                self._pieces.append(text)
                yield AgentText(text)
            case ThinkingBlock(thinking=thought):
                yield AgentThought(thought)
            case ToolUseBlock(name="TodoWrite", input={"todos": list(todos)}):
                yield PlanChanged(tuple(_entry(todo) for todo in todos if isinstance(todo, dict)))
            case ToolUseBlock(id=call_id, name=name, input=arguments):
                self._open[call_id] = _title(name, arguments)
                yield ToolStarted(call_id, self._open[call_id], _KINDS.get(name, "other"))
            case ToolResultBlock(tool_use_id=call_id, is_error=is_error) if call_id in self._open:
                yield ToolEnded(call_id, self._open.pop(call_id), is_error is not True)
            case _:
                pass


def _waits_for_api(message: Message) -> bool:
    """Claude asks a failing API again for minutes, and tells of it: that is no work."""
    return isinstance(message, SystemMessage) and message.subtype == "api_retry"


def _words(result: ResultMessage) -> str:
    said = "; ".join(result.errors or ()) or (result.result or "").strip()
    status = "" if result.api_error_status is None else f" (HTTP status {result.api_error_status})"
    return f"{said or result.subtype}{status}"


def _title(name: str, arguments: dict[str, Any]) -> str:
    told = next((arguments[key] for key in _TITLES if isinstance(arguments.get(key), str)), "")
    return f"{name} {told}".strip()[:_TITLE_CHARACTERS]


def _entry(todo: dict[str, Any]) -> PlanEntry:
    return PlanEntry(str(todo.get("content", "")), _STATUSES.get(str(todo.get("status")), "pending"))


def _usage(result: ResultMessage) -> Usage:
    usage = result.usage or {}
    inputs, outputs = _all_input(usage), _count(usage.get("output_tokens"))
    return Usage(inputs, outputs, inputs + outputs, result.total_cost_usd, "USD" if result.total_cost_usd else None)


def _all_input(usage: dict[str, Any]) -> int:
    """Input tokens read from and written to the cache are counted apart by the API."""
    return sum(
        _count(usage.get(key)) for key in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )


def _window(result: ResultMessage) -> int:
    return max((_count(used.get("contextWindow")) for used in (result.model_usage or {}).values()), default=0)


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
