"""A running ACP agent and the JSON-RPC connection to it.

The bot is the client of the protocol. It offers no file system and no terminal; a question to the person is passed on.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import structlog
from acp import RequestError
from acp.connection import Connection
from acp.meta import AGENT_METHODS, CLIENT_METHODS
from acp.schema import PermissionOption, RequestPermissionRequest, SessionNotification, ToolCallProgress
from pydantic import ValidationError

from bot.agents.acp_progress import FormAsked
from bot.agents.process import AgentProcess

_UNATTENDED = ("allow_once", "allow_always", "reject_once", "reject_always")

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
    """JSON-RPC messages over the stdin and stdout of an agent, for an `acp` connection."""

    def __init__(self, process: AgentProcess) -> None:
        self._process = process

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
            if is_message(value):
                return value
        return None

    async def close(self) -> None:
        self._process.close_stdin()


class AcpLink:
    """A connection to an agent.

    `acp`'s own `ClientSideConnection` is not used: an update or stop reason newer than its schema breaks it.
    """

    def __init__(self, process: AgentProcess) -> None:
        self.process = process
        self.capabilities: dict[str, Any] = {}
        self.cancelling = False
        self.heard_history = False
        self._connection = Connection(self._handle, _Transport(process))
        self._listener: tuple[str, Callable[[SessionNotification | FormAsked], None]] | None = None
        self._heard = asyncio.Event()

    async def ask(self, method: str, params: dict[str, Any], seconds: float | None) -> dict[str, Any]:
        """Return the answer to one request; `method` is a key of AGENT_METHODS.

        Raises RequestError (the agent refuses), ConnectionError (the agent is gone), TimeoutError.
        """
        async with asyncio.timeout(seconds):
            return as_object(await self._connection.send_request(AGENT_METHODS[method], params))

    async def cancel(self, session: str) -> None:
        """Ask the agent to stop its prompt; from now on it gets no permission. Raises ConnectionError."""
        self.cancelling = True
        await self._connection.send_notification(AGENT_METHODS["session_cancel"], {"sessionId": session})

    def listen(self, session: str, listener: Callable[[SessionNotification | FormAsked], None]) -> None:
        """Pass the updates of this session on. Those of other sessions, and all without a listener, are dropped."""
        self.cancelling = False
        self._listener = (session, listener)

    def unlisten(self) -> None:
        """Drop all updates until the next `listen`."""
        self._listener = None

    async def silence(self, quiet_seconds: float, at_most_seconds: float) -> None:
        """Wait until the agent has sent nothing for a while."""
        loop = asyncio.get_running_loop()
        until = loop.time() + at_most_seconds
        while loop.time() < until:
            self._heard.clear()
            try:
                async with asyncio.timeout(quiet_seconds):
                    await self._heard.wait()
            except TimeoutError:
                return

    async def close(self) -> None:
        """End the agent and its process group."""
        try:
            await self._connection.close()
        finally:
            await self.process.end()

    async def _handle(self, method: str, params: object, is_notification: bool) -> dict[str, Any] | None:
        # Without an await, updates are handled in the order they were sent, and before the answer that follows them.
        self._heard.set()
        if method == CLIENT_METHODS["session_update"]:
            self._take_update(params)
        elif method == CLIENT_METHODS["session_request_permission"]:
            return self._decide_permission(params)
        elif method == CLIENT_METHODS["elicitation_create"]:
            return self._pass_question_on(params)
        elif not is_notification:
            raise RequestError.method_not_found(method)
        return None

    def _pass_question_on(self, params: object) -> dict[str, Any]:
        """Pass the question of a tool call on; here is no answer (https://agentclientprotocol.com/protocol/elicitation)."""
        match params:
            case {"sessionId": session, "toolCallId": str(), "message": str(message), "requestedSchema": dict(schema)}:
                if self._listener is not None and not self.cancelling and session == self._listener[0]:
                    self._listener[1](FormAsked(message, as_object(schema.get("properties"))))
                return {"action": "cancel"}
            case _:
                return {"action": "decline"}

    def _take_update(self, params: object) -> None:
        kind = as_object(as_object(params).get("update")).get("sessionUpdate")
        self.heard_history |= kind in ("user_message_chunk", "agent_message_chunk")
        try:
            notification = SessionNotification.model_validate(params)
        except ValidationError:
            # A kind of update of a newer protocol version.
            _log.debug("agent-update-unknown")
            return
        if self._listener is not None and notification.session_id == self._listener[0]:
            self._listener[1](notification)

    def _decide_permission(self, params: object) -> dict[str, Any]:
        try:
            request = RequestPermissionRequest.model_validate(params)
        except ValidationError as error:
            raise RequestError.invalid_params() from error
        choice = None if self.cancelling else unattended_choice(request.options)
        if choice is not None and self._listener is not None and request.session_id == self._listener[0]:
            # Some agents report a tool call that needs permission only here and at its end.
            call = ToolCallProgress(session_update="tool_call_update", **request.tool_call.model_dump())
            self._listener[1](SessionNotification(session_id=request.session_id, update=call))
        outcome = {"outcome": "cancelled"} if choice is None else {"outcome": "selected", "optionId": choice}
        return {"outcome": outcome}


def unattended_choice(options: list[PermissionOption]) -> str | None:
    """Return the option to choose without a person: the narrowest yes, else a no, else None."""
    by_kind = {option.kind: option.option_id for option in reversed(options)}
    return next((by_kind[kind] for kind in _UNATTENDED if kind in by_kind), None)


def error_text(error: RequestError) -> str:
    """Return the message of an error with the detail that JSON-RPC keeps separately."""
    data = error.data
    detail = data.get("details") or data.get("message") if isinstance(data, dict) else data
    return f"{error} ({detail})" if isinstance(detail, str) and detail else str(error)


def error_status(error: RequestError) -> int | None:
    """Return the HTTP status of the model's answer, where the agent tells it in the error's data."""
    status = as_object(error.data).get("status")
    return status if isinstance(status, int) else None


def as_object(value: object) -> dict[str, Any]:
    """Return a JSON value that should be an object; an empty one if it is not."""
    return value if isinstance(value, dict) else {}
