"""The agent's side of the protocol: https://agentclientprotocol.com/protocol/overview"""

import os
from binascii import a2b_base64
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

from bot.simulated.agent.session import Session, not_found
from bot.simulated.agent.wire import Message, RequestError, Wire
from bot.simulated.agent.work import Added, CancelledError, Work

PROTOCOL_VERSION = 1
_METHODS = (
    "initialize",
    "session/new",
    "session/load",
    "session/resume",
    "session/prompt",
    "session/set_config_option",
)
_MODELS = {
    "id": "brain",
    "name": "Model",
    "category": "model",
    "type": "select",
    "currentValue": "small",
    "options": [{"value": "small", "name": "Small"}, {"group": "g", "name": "More", "options": [{"value": "large-2"}]}],
}


class _Prompt(NamedTuple):
    """A prompt that runs in its own thread."""

    session_id: object
    stop: Event
    added: "Added"
    thread: Thread


class ScriptedAgent:
    """An agent that answers a client on stdio; prompts run at the same time, each in its own thread."""

    def __init__(
        self, folder: Path, *, can_load: bool, can_resume: bool, can_be_told: bool = False, has_models: bool = False
    ) -> None:
        self._folder = folder
        self._has_models = has_models
        self._can_be_told = can_be_told
        self._can_load, self._can_resume = can_load, can_resume
        self._wire = Wire()
        self._sessions: dict[str, tuple[Session, Path]] = {}
        self._prompts: list[_Prompt] = []

    def serve(self) -> None:
        """Serve the protocol until stdin ends; then give up running prompts."""
        try:
            for message in self._wire.heard():
                self._take(message)
        finally:
            self._wire.close()
            for prompt in self._prompts:
                prompt.stop.set()
                prompt.thread.join()

    def _take(self, message: Message) -> None:
        method, params = message["method"], message.get("params")
        if "id" not in message:
            if method == "session/cancel":
                self._cancel(params)
        elif method == "session/prompt":
            self._begin(message["id"], params)
        else:
            self._wire.answer(message["id"], partial(self._handle, method, params))

    def _cancel(self, params: Any) -> None:
        for prompt in self._prompts:
            if prompt.session_id == _session_id(params):
                prompt.stop.set()

    def _begin(self, number: object, params: Any) -> None:
        stop, added = Event(), Added()
        handle = partial(self._handle, "session/prompt", params, stop, added)
        thread = Thread(target=self._wire.answer, args=(number, handle), daemon=True)
        self._prompts = [prompt for prompt in self._prompts if prompt.thread.is_alive()]
        self._prompts.append(_Prompt(_session_id(params), stop, added, thread))
        thread.start()

    def _handle(self, method: str, params: Any, stop: Event | None = None, added: Added | None = None) -> Message:
        match method, params:
            case "initialize", {"protocolVersion": int()}:
                return self._introduce()
            case "session/new", {"cwd": str(cwd), "mcpServers": list()}:
                return self._new(Path(cwd))
            case "session/load", {"cwd": str(cwd), "mcpServers": list(), "sessionId": str(session_id)}:
                return self._load(session_id, Path(cwd))
            case "session/resume", {"cwd": str(cwd), "sessionId": str(session_id)}:
                self._sessions[session_id] = Session.load(self._folder, session_id), Path(cwd)
                return self._options()
            case "session/set_config_option", {"sessionId": str(session_id), "configId": "brain", "value": str(value)}:
                self._sessions[session_id][0].remembered.append(f"the model {value}")
                return {"configOptions": [{**_MODELS, "currentValue": value}]}
            case "session/prompt", {"sessionId": str(session_id), "prompt": [_, *_] as blocks} if stop and added:
                return self._prompt(session_id, [_text(block) for block in blocks], stop, added)
            case "_session/steering", {"sessionId": str(session_id), "prompt": [_, *_] as blocks} if self._can_be_told:
                running = (prompt.added for prompt in self._prompts if prompt.session_id == session_id)
                is_told = any(added.add("\n".join(map(_text, blocks))) for added in running)
                return {"outcome": "injected" if is_told else "promptRequired"}
        if method in _METHODS:
            raise _invalid(params)
        raise RequestError(-32601, "Method not found", {"method": method})

    def _introduce(self) -> Message:
        resume: Message = {"resume": {}} if self._can_resume else {}
        capabilities = {
            "loadSession": self._can_load,
            "promptCapabilities": {"image": True},
            "sessionCapabilities": resume,
        }
        meta = {"_meta": {"steering": {"supported": True}}} if self._can_be_told else {}
        return {"protocolVersion": PROTOCOL_VERSION, "agentCapabilities": capabilities, **meta}

    def _new(self, cwd: Path) -> Message:
        session = Session(os.urandom(16).hex())
        session.save(self._folder)
        self._sessions[session.id] = session, cwd
        return {"sessionId": session.id, **self._options()}

    def _options(self) -> Message:
        return {"configOptions": [_MODELS]} if self._has_models else {}

    def _load(self, session_id: str, cwd: Path) -> Message:
        session = Session.load(self._folder, session_id)
        self._sessions[session_id] = session, cwd
        for request, answer in session.history:
            for kind, text in (("user_message_chunk", request), ("agent_message_chunk", answer)):
                update = {"content": {"text": text, "type": "text"}, "sessionUpdate": kind}
                self._wire.send({"method": "session/update", "params": {"sessionId": session_id, "update": update}})
        return self._options()

    def _prompt(self, session_id: str, blocks: list[str], stop: Event, added: Added) -> Message:
        if session_id not in self._sessions:
            raise not_found(session_id)
        session, cwd = self._sessions[session_id]
        work = Work(self._wire, session, cwd, blocks, stop, added)
        try:
            work.obey(blocks[-1])
        except CancelledError:
            work.stop_reason = "cancelled"
        finally:
            session.history.append((blocks[-1], "\n".join(work.said)))
            session.save(self._folder)
        return {"stopReason": work.stop_reason}


def _session_id(params: Any) -> object:
    return params.get("sessionId") if isinstance(params, dict) else None


def _text(block: Any) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image", "mimeType": str(kind), "data": str(data)}:
            return f"[{kind}, {len(a2b_base64(data))} bytes]"
        case _:
            raise _invalid(block)


def _invalid(params: Any) -> RequestError:
    return RequestError(-32602, "Invalid params", {"errors": [{"input": params}]})
