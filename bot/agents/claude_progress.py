"""Translate what Claude Code sends during a prompt.

Messages: https://docs.claude.com/en/api/agent-sdk/python#message-types
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import claude_agent_sdk as sdk

from bot.agents.driver import AgentDone, AgentEvent, Failed, Usage
from bot.agents.prompt_loop import PromptProgress
from bot.thread import reasons
from bot.thread.formatting import one_line
from bot.thread.questions import Question
from bot.thread.tracking import PlanEntry

_TITLES = ("command", "file_path", "path", "pattern", "url", "query", "description")
_STATUSES: dict[str, Literal["pending", "in_progress", "completed"]] = {
    "in_progress": "in_progress",
    "completed": "completed",
}
_TOKENS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
_DONE = (None, "end_turn", "stop_sequence")
COST_TOLD = "threadtree_cost"
"""The kind of message that tells what the session has cost so far: the answer to a request of our own."""
ASKS_PERSON = "AskUserQuestion"
"""The tool with which Claude asks a person: https://docs.claude.com/en/docs/agent-sdk/user-input"""

PROPOSES_PLAN = "ExitPlanMode"
"""The tool with which Claude ends its plan mode; a person has to approve the plan."""


@dataclass(frozen=True, slots=True)
class Interim:
    """A result that does not end the prompt: Claude was told more meanwhile, which it reads next."""

    result: sdk.ResultMessage


Item = sdk.Message | Interim


class ClaudeProgress(PromptProgress[Item]):
    """See `PromptProgress`. `session` is the one that was asked for."""

    def __init__(self, session: str) -> None:
        super().__init__()
        self._session = session
        self._model: str | None = None
        self._tokens: int | None = None
        """Those of all results: a prompt to which more was told has several."""

    def is_work(self, item: Item) -> bool:
        """Return whether Claude works. It retries a failing API for minutes; its reports of that are not work."""
        return not (isinstance(item, sdk.SystemMessage) and item.subtype == "api_retry")

    def events(self, item: Item) -> Iterator[AgentEvent]:
        """Yield the events of a message. Text of a sub-agent is not part of the answer."""
        match item:
            case sdk.SystemMessage(subtype="init", data={"model": str(model)}):
                self._model = model
            case sdk.SystemMessage(
                subtype=subtype, data={"usage": {"session": {"total_cost_usd": float() | int() as cost}}}
            ) if subtype == COST_TOLD:
                yield Usage(None, cost, self._model)
            case sdk.ResultMessage():
                yield self._used(item)
            case Interim(result=result):
                self._questions = ()  # what it was told may be the answer
                yield self._used(result)
            case sdk.AssistantMessage(content=content, parent_tool_use_id=None, error=None):
                for block in content:
                    yield from self._block(block)
            case sdk.AssistantMessage(content=content) | sdk.UserMessage(content=list(content)):
                for block in content:
                    if isinstance(block, sdk.ToolUseBlock | sdk.ToolResultBlock):
                        yield from self._block(block)
            case _:
                pass

    def end(self, item: Item) -> AgentDone | Failed | None:
        """Return how the prompt ended. Some results that claim success are errors, and some are empty."""
        match item:
            case sdk.SystemMessage(subtype="init", data={"session_id": session}) if session != self._session:
                return Failed(reasons.wrong_session(str(session)))
            case sdk.SystemMessage(subtype="api_retry", data={"error": "authentication_failed", **rest}):
                return Failed(reasons.model_key_refused(rest.get("error_status")))
            case sdk.ResultMessage() if self._questions or self._proposed is not None:
                return self._completed()
            case sdk.ResultMessage(is_error=True) | sdk.ResultMessage(subtype="error_during_execution"):
                return Failed(reasons.agent_error(_error_text(item)), status=item.api_error_status)
            case sdk.ResultMessage(stop_reason="refusal" | "max_tokens" as reason):
                return Failed(reasons.agent_stopped(reason))
            case sdk.ResultMessage(subtype="success", stop_reason=reason) if reason in _DONE:
                return self._completed()
            case sdk.ResultMessage(subtype="success", stop_reason=reason):
                return Failed(reasons.agent_stopped(reason))
            case sdk.ResultMessage(subtype=subtype):
                return Failed(reasons.agent_error(f"{subtype}: {_error_text(item)}"))
            case _:
                return None

    def _used(self, result: sdk.ResultMessage) -> Usage:
        told = [count for name in _TOKENS if isinstance(count := (result.usage or {}).get(name), int)]
        if told:
            self._tokens = (self._tokens or 0) + sum(told)
        return Usage(self._tokens, result.total_cost_usd, self._model)

    def _block(self, block: sdk.ContentBlock) -> Iterator[AgentEvent]:
        match block:
            case sdk.TextBlock(text=text):
                yield from self._say(text, new_paragraph=True)
            case sdk.ToolUseBlock(name="TodoWrite", input={"todos": list(todos)}):
                yield self._plan(
                    PlanEntry(str(todo.get("content", "")), _STATUSES.get(str(todo.get("status")), "pending"))
                    for todo in todos
                    if isinstance(todo, dict)
                )
            case sdk.ToolUseBlock(name=name, input={"questions": list(asked)}) if name == ASKS_PERSON:
                self._questions = tuple(_questions(asked))
            case sdk.ToolUseBlock(id=call_id, name=name, input=arguments):
                told = next((arguments[key] for key in _TITLES if isinstance(arguments.get(key), str)), "")
                words = one_line(str(arguments.get("description", ""))) if "command" in arguments else ""
                # The agent's own words, and the command below them.
                yield from self._tool_started(call_id, "\n".join(filter(None, (words, f"{name} {told}".strip()))))
            case sdk.ToolResultBlock(tool_use_id=call_id, content=content, is_error=is_error):
                yield from self._tool_ended(call_id, ok=is_error is not True, output=_printed(content))
            case _:
                pass


def _error_text(result: sdk.ResultMessage) -> str:
    said = "; ".join(result.errors or ()) or (result.result or "").strip()
    status = "" if result.api_error_status is None else f" (HTTP status {result.api_error_status})"
    return f"{said or result.subtype}{status}"


def _printed(content: str | list[dict[str, Any]] | None) -> str:
    """Return the text of a tool's result; pictures are none."""
    blocks: list[Any] = content if isinstance(content, list) else [{"text": content or ""}]
    return "\n".join(text for block in blocks if isinstance(block, dict) and isinstance(text := block.get("text"), str))


def _questions(asked: list[Any]) -> Iterator[Question]:
    for one in asked:
        match one:
            case {"question": str(text), **rest}:
                options = rest.get("options")
                named = [option for option in options if isinstance(option, dict)] if isinstance(options, list) else []
                choices = tuple((str(option.get("label", "")), str(option.get("description", ""))) for option in named)
                yield Question(text, choices, many=rest.get("multiSelect") is True)
            case _:
                pass
