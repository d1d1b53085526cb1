"""A running ACP agent and the JSON-RPC connection to it.

The bot is the client of the protocol. It offers no file system and no terminal; a question to the person is passed on.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import structlog
from acp import RequestError, schema
from acp.connection import Connection
from acp.meta import AGENT_METHODS, CLIENT_METHODS
from pydantic import ValidationError

from bot.agents.acp_progress import AcpProgress, Answered, FormAsked, Item, PlanProposed, shown_text
from bot.agents.driver import Block, Failed
from bot.agents.process import AgentProcess
from bot.agents.prompt_loop import Inbox, Link
from bot.thread import reasons

_STEERING = "_session/steering"
"""An extension of the protocol that an agent announces in `_meta`; claude-agent-acp and codex-acp have it."""
TELL_SECONDS = 30.0
_UNATTENDED = ("allow_once", "allow_always", "reject_once", "reject_always")
_LEAVES_PLANNING = "switch_mode"
"""The kind of tool call with which an agent wants to carry its plan out."""

_log = structlog.get_logger()


def is_message(value: dict[str, Any]) -> bool:
    """Return whether the object has the shape of a JSON-RPC message: https://www.jsonrpc.org/specification"""
    error = value.get("error")
    return (
        isinstance(value.get("method"), str | None)
        and isinstance(value.get("id"), str | int | None)
        and (error is None or (isinstance(error, dict) and isinstance(error.get("code", 0), int)))
        and not value.keys().isdisjoint(("method", "id"))
    )


class _Transport:
    """JSON-RPC messages over the stdin and stdout of an agent, for an `acp` connection.

    An update goes to `take`, and nothing more is read until that has taken it: the connection would read on.
    """

    def __init__(self, process: AgentProcess, take: Callable[[object], Awaitable[None]]) -> None:
        self._process = process
        self._take = take

    async def send(self, message: dict[str, Any]) -> None:
        """Write one message. A request raises ConnectionError when the agent reads no more; an answer is dropped."""
        try:
            await self._process.write(json.dumps(message, separators=(",", ":")) + "\n")
        except ConnectionError:
            if "method" in message:
                raise
            _log.debug("agent-answer-undeliverable")

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; None at the end of the stream."""
        while (value := await self._process.read_object()) is not None:
            if not is_message(value):
                continue
            if value.get("method") != CLIENT_METHODS["session_update"] or "id" in value:
                return value
            await self._take(value.get("params"))
        return None

    async def close(self) -> None:
        self._process.close_stdin()


class AcpLink(Link[Item]):
    """A connection to an agent.

    `acp`'s own `ClientSideConnection` is not used: an update or stop reason newer than its schema breaks it.
    """

    def __init__(self, process: AgentProcess, *, plans: bool = False) -> None:
        super().__init__(process)
        self._plans = plans
        self.capabilities: dict[str, Any] = {}
        self.heard_history = False
        self._connection = Connection(self._handle, _Transport(process, self._take_update))
        self._inbox: Inbox[Item] | None = None
        self._late: Callable[[Item], None] | None = None
        self._permits = False
        self._heard = asyncio.Event()
        self.replays: tuple[float, float] | None = None
        """The past of the session may still come: until nothing came for so many seconds, and for so many at most."""

    def progress(self) -> AcpProgress:
        return AcpProgress()

    async def ask_for(self, method: str, params: dict[str, Any], seconds: float | None) -> dict[str, Any]:
        """Return the answer to one request; `method` is a key of AGENT_METHODS.

        Raises RequestError (the agent refuses), ConnectionError (the agent is gone), TimeoutError.
        """
        async with asyncio.timeout(seconds):
            return as_object(await self._connection.send_request(AGENT_METHODS[method], params))

    async def ask(self, blocks: Sequence[Block], inbox: Inbox[Item]) -> None:
        if self.replays is not None:
            await self._silence(*self.replays)
            self.replays = None
        content = await asyncio.to_thread(content_of, blocks, self.capabilities)
        self._inbox, self._permits = inbox, True
        self.asked.set()
        item: Answered | Failed
        try:
            item = Answered(await self.ask_for("session_prompt", {"sessionId": self.session, "prompt": content}, None))
        except RequestError as error:
            item = Failed(reasons.agent_error(error_text(error)), status=error_status(error))
        except ConnectionError:
            item = Failed(reasons.agent_gone(await self.process.why_output_ended()))
        await inbox.put(item)

    async def tell(self, text: str) -> bool:
        if not self.takes_messages or not self._permits:
            return False
        params = {
            "sessionId": self.session,
            "prompt": [{"type": "text", "text": text}],
            "_meta": {"steering": {"idleBehavior": "promptRequired"}},
        }
        try:
            async with asyncio.timeout(TELL_SECONDS):
                answer = as_object(await self._connection.send_request(_STEERING, params))
        except (RequestError, ConnectionError, TimeoutError) as problem:
            _log.warning("agent-not-told", problem=str(problem))
            return False
        return answer.get("outcome") == "injected"

    async def cancel(self) -> None:
        await self._connection.send_notification(AGENT_METHODS["session_cancel"], {"sessionId": self.session})

    def unlisten(self, late: Callable[[Item], None]) -> None:
        self._inbox, self._late, self._permits = None, late, False

    async def _silence(self, quiet_seconds: float, at_most_seconds: float) -> None:
        """Wait until the agent has sent nothing for a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_seconds):
                while True:
                    self._heard.clear()
                    await asyncio.sleep(quiet_seconds)
                    if not self._heard.is_set():
                        return

    async def close(self) -> None:
        try:
            await self._connection.close()
        finally:
            await self.process.end()

    async def _handle(self, method: str, params: object, is_notification: bool) -> dict[str, Any] | None:
        self._heard.set()
        if method == CLIENT_METHODS["session_request_permission"]:
            return await self._decide_permission(params)
        if method == CLIENT_METHODS["elicitation_create"]:
            return await self._pass_question_on(params)
        if not is_notification:
            raise RequestError.method_not_found(method)
        return None

    async def _pass_question_on(self, params: object) -> dict[str, Any]:
        """Pass the question of a tool call on; here is no answer (https://agentclientprotocol.com/protocol/elicitation)."""
        match params:
            case {"sessionId": session, "toolCallId": str(), "message": str(message), "requestedSchema": dict(schema)}:
                await self._tell(session, FormAsked(message, as_object(schema.get("properties"))))
                return {"action": "cancel"}
            case _:
                return {"action": "decline"}

    async def _take_update(self, params: object) -> None:
        self._heard.set()
        kind = as_object(as_object(params).get("update")).get("sessionUpdate")
        self.heard_history |= kind in ("user_message_chunk", "agent_message_chunk")
        try:
            notification = schema.SessionNotification.model_validate(params)
        except ValidationError:
            # A kind of update of a newer protocol version.
            _log.debug("agent-update-unknown")
            return
        await self._tell(notification.session_id, notification)

    async def _tell(self, session: str, item: schema.SessionNotification | FormAsked | PlanProposed) -> None:
        """Pass it on, once there is room. What is of other sessions, and all before the first prompt, is dropped."""
        if session != self.session:
            return
        if self._inbox is not None:
            await self._inbox.put(item)
        elif self._late is not None:
            self._late(item)

    async def _decide_permission(self, params: object) -> dict[str, Any]:
        try:
            request = schema.RequestPermissionRequest.model_validate(params)
        except ValidationError as error:
            raise RequestError.invalid_params() from error
        call = request.tool_call
        choice = unattended_choice(request.options, refuses=self._plans) if self._permits else None
        if self._plans and call.kind == _LEAVES_PLANNING:
            plan = call.raw_input.get("plan") if isinstance(call.raw_input, dict) else None
            await self._tell(request.session_id, PlanProposed(plan if isinstance(plan, str) else shown_text(call)))
            choice = None
        if choice is not None:
            # Some agents report a tool call that needs permission only here and at its end.
            update = schema.ToolCallProgress(session_update="tool_call_update", **call.model_dump())
            session = request.session_id
            await self._tell(session, schema.SessionNotification(session_id=session, update=update))
        outcome = {"outcome": "cancelled"} if choice is None else {"outcome": "selected", "optionId": choice}
        return {"outcome": outcome}


def unattended_choice(options: list[schema.PermissionOption], *, refuses: bool = False) -> str | None:
    """Return the option to choose without a person: the narrowest yes, else a no, else None; `refuses`: never a yes."""
    by_kind = {option.kind: option.option_id for option in reversed(options)}
    kinds = _UNATTENDED[2:] if refuses else _UNATTENDED
    return next((by_kind[kind] for kind in kinds if kind in by_kind), None)


def error_text(error: RequestError) -> str:
    """Return the message of an error with the detail that JSON-RPC keeps separately, where it says more."""
    text, data = str(error), error.data
    detail = data.get("details") or data.get("message") if isinstance(data, dict) else data
    if not isinstance(detail, str) or detail.strip() in text:
        return text
    return detail if text in detail else f"{text} ({detail})"


def error_status(error: RequestError) -> int | None:
    """Return the HTTP status of the model's answer, where the agent tells it in the error's data."""
    status = as_object(error.data).get("status")
    return status if isinstance(status, int) else None


def as_object(value: object) -> dict[str, Any]:
    """Return a JSON value that should be an object; an empty one if it is not."""
    return value if isinstance(value, dict) else {}


def content_of(blocks: Sequence[Block], capabilities: dict[str, Any]) -> list[dict[str, str]]:
    """Return the blocks for this agent: https://agentclientprotocol.com/protocol/content. Raises OSError."""
    takes_images = as_object(capabilities.get("promptCapabilities")).get("image") is True
    content = []
    for block in blocks:
        if isinstance(block, str):
            content.append({"type": "text", "text": block})
        elif takes_images:
            content.append({"type": "image", "mimeType": block.media_type, "data": block.base64()})
    return content
