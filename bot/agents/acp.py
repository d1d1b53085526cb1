"""Agents that speak the Agent Client Protocol, version 1, on stdio: https://agentclientprotocol.com/protocol/overview"""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from acp import PROTOCOL_VERSION, RequestError

from bot.agents.acp_link import AcpLink, as_object, error_text
from bot.agents.acp_progress import Item
from bot.agents.driver import CannotOpenError, Launch, SessionOpened
from bot.agents.mcp import for_acp
from bot.agents.presets import PLANNING, SessionOptions
from bot.agents.process import AgentProcess
from bot.agents.prompt_loop import Driver
from bot.sandbox.bwrap import command_of
from bot.sandbox.net.model_answers import is_model_name
from bot.thread import reasons

Check = Callable[[str | None], Awaitable[Mapping[str, str] | None]]

_AUTH_REQUIRED = RequestError.auth_required().code
_BUSY = ("busy", "active writer")
MOST_MODELS = 100
_CLIENT = {
    "protocolVersion": PROTOCOL_VERSION,
    "clientCapabilities": {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
        # An agent may ask the person: the question ends the turn.
        "elicitation": {"form": {}},
        # Without this, warnings about models and settings come as text of the answer.
        "session": {"notices": {}},
    },
    "clientInfo": {"name": "threadtree", "version": "1"},
}


@dataclass(frozen=True, slots=True)
class OpenTimeouts:
    """Seconds that opening waits: for each answer, for silence after a load, before asking a busy agent again."""

    answer_seconds: float = 60
    quiet_seconds: float = 0.5
    busy_seconds: float = 2


@dataclass(frozen=True, slots=True)
class _Lost:
    """Why a session was not continued. After a pause (None: never) the same may succeed."""

    why: str
    pause_seconds: float | None = None


def _choices(option: dict[str, Any]) -> dict[str, str]:
    """Return the values of an option with their names, at most `MOST_MODELS`; they may come in groups."""
    found: dict[str, str] = {}
    given = [as_object(one) for one in option.get("options") or ()]
    for one in [*given, *(as_object(one) for group in given for one in group.get("options") or ())]:
        value, name = one.get("value"), one.get("name")
        if isinstance(value, str) and is_model_name(value) and len(found) < MOST_MODELS:
            found[value] = name if isinstance(name, str) else value
    return found


class AcpDriver(Driver[Item]):
    """See `AgentDriver`. `check` gets the session to continue before each opening: it can raise CannotOpenError, or
    return the variables for the agent.
    """

    def __init__(
        self,
        launch: Launch,
        timeouts: OpenTimeouts | None = None,
        options: SessionOptions | None = None,
        check: Check | None = None,
    ) -> None:
        super().__init__()
        self._launch = launch
        self._timeouts = timeouts or OpenTimeouts()
        self._options = options or SessionOptions()
        self._check = check
        self._command = shlex.join(command_of(launch.argv))
        self._models: tuple[str, ...] = ()

    async def _open(self, resume: str | None) -> SessionOpened:
        if self._check is not None and (environment := await self._check(resume)) is not None:
            self._launch = replace(self._launch, environment=environment)
        link, why = await self._start(), None
        if resume is not None:
            lost = await self._continue(link, resume)
            if lost is not None and lost.pause_seconds is not None:
                await asyncio.sleep(lost.pause_seconds)
                lost = await self._continue(await self._start(), resume)
            if lost is None:
                return SessionOpened(resume, resumed=True, lost=None, models=self._models)
            link, why = await self._start(), lost.why  # what is half loaded must not affect the new session
        answer = await self._must_answer(link, "session_new", self._place(), "begin a session")
        session = answer.get("sessionId")
        if not isinstance(session, str) or not session:
            raise CannotOpenError(*reasons.session_without_id(self._command), link.process.stderr_tail)
        await self._enter(link, session, answer)
        return SessionOpened(session, resumed=False, lost=why, models=self._models)

    async def _start(self) -> AcpLink:
        """Start the agent and initialize it; one that runs is ended before."""
        await self.aclose()
        try:
            process = await AgentProcess.start(self._launch)
        except OSError as error:
            # uvloop's errors do not name the path.
            path = self._launch.argv[0] if self._launch.cwd.is_dir() else self._launch.cwd
            raise CannotOpenError(*reasons.not_startable(f"`{self._command}`", error.strerror, path)) from error
        link = AcpLink(process, plans=self._launch.plans)
        self._link = link
        answer = await self._must_answer(link, "initialize", _CLIENT, "start")
        version = answer.get("protocolVersion")
        if version != PROTOCOL_VERSION:
            why = reasons.other_protocol(self._command, version, PROTOCOL_VERSION)
            raise CannotOpenError(*why, link.process.stderr_tail)
        link.capabilities = as_object(answer.get("agentCapabilities"))
        takes = as_object(link.capabilities.get("mcpCapabilities"))
        for server in self._launch.mcp_servers:
            if server.type != "stdio" and takes.get(server.type) is not True:
                why = reasons.no_mcp_transport(self._command, server.name, server.type)
                raise CannotOpenError(*why, link.process.stderr_tail)
        link.takes_messages = as_object(as_object(answer.get("_meta")).get("steering")).get("supported") is True
        return link

    def _place(self) -> dict[str, Any]:
        meta = {"_meta": dict(self._options.meta)} if self._options.meta else {}
        servers = for_acp(self._launch.mcp_servers, self._launch.environment)
        return {"cwd": str(self._launch.cwd), "mcpServers": servers, **meta}

    async def _enter(self, link: AcpLink, session: str, answer: dict[str, Any]) -> None:
        """Use the session from now on, in its mode: https://agentclientprotocol.com/protocol/session-modes"""
        link.session = session
        modes = as_object(answer.get("modes"))
        offered = [as_object(mode).get("id") for mode in modes.get("availableModes") or ()]
        now = modes.get("currentModeId")
        mode = self._mode(offered, now)
        if mode not in (None, now):
            params = {"sessionId": session, "modeId": mode}
            await self._must_answer(link, "session_set_mode", params, "work unattended")
        options = [as_object(option) for option in answer.get("configOptions") or ()]
        for option in (one for one in options if one.get("id") == self._options.plan_option):
            value = "plan" if self._launch.plans else "default"
            if option.get("currentValue") != value:
                params = {"sessionId": session, "configId": option["id"], "value": value}
                await self._must_answer(link, "session_set_config_option", params, "work unattended")
        await self._use_model(link, session, options)

    async def _use_model(self, link: AcpLink, session: str, options: Sequence[dict[str, Any]]) -> None:
        """Choose the model: https://agentclientprotocol.com/protocol/session-config-options. Raises CannotOpenError."""
        option = next((one for one in options if (one.get("category"), one.get("type")) == ("model", "select")), {})
        offered, wanted = _choices(option), self._launch.model
        self._models = tuple(offered)
        if not wanted:
            return
        value = next((value for value, name in offered.items() if wanted in (value, name)), None)
        if value is None:
            raise CannotOpenError(*reasons.no_such_model(wanted, self._models), link.process.stderr_tail)
        if option.get("currentValue") != value:
            params = {"sessionId": session, "configId": option.get("id"), "value": value}
            await self._must_answer(link, "session_set_config_option", params, f"use the model {wanted}")

    def _mode(self, offered: Sequence[Any], now: Any) -> Any:
        """Return the mode to choose of those that are offered; None to stay. A session keeps the mode of its plan."""
        # An agent's own sandbox cannot be set up inside ours.
        plans = self._launch.plans and not (self._launch.sandboxed and self._options.plan_option)
        wanted = PLANNING if plans else (self._options.mode,)
        chosen = next((one for one in wanted if one in offered), None)
        if chosen is None and not plans and now in PLANNING:
            chosen = next((one for one in offered if one not in PLANNING), None)
        return chosen

    async def _must_answer(self, link: AcpLink, method: str, params: dict[str, Any], what: str) -> dict[str, Any]:
        try:
            return await link.ask_for(method, params, self._timeouts.answer_seconds)
        except RequestError as error:
            raise self._refused(link, what, error) from error
        except TimeoutError:
            how = reasons.silent_for(self._timeouts.answer_seconds)
        except ConnectionError:
            how = await link.process.why_output_ended()
        raise CannotOpenError(*reasons.no_protocol(self._command, how, what), link.process.stderr_tail)

    def _refused(self, link: AcpLink, what: str, error: RequestError) -> CannotOpenError:
        needs_login = error.code == _AUTH_REQUIRED
        why = reasons.agent_refused(self._command, what, error_text(error), needs_login=needs_login)
        return CannotOpenError(*why, link.process.stderr_tail)

    async def _continue(self, link: AcpLink, session: str) -> _Lost | None:
        """Continue the stored session; return the reason why not. Raises CannotOpenError."""
        # `{}` announces `session/resume`.
        if as_object(link.capabilities.get("sessionCapabilities")).get("resume") is not None:
            method = "session_resume"
        elif link.capabilities.get("loadSession") is True:
            method = "session_load"
        else:
            return _Lost("the agent cannot continue earlier sessions")
        try:
            answer = await link.ask_for(method, {"sessionId": session, **self._place()}, self._timeouts.answer_seconds)
        except RequestError as error:
            text = error_text(error)
            busy = any(word in text.lower() for word in _BUSY)
            if error.code == _AUTH_REQUIRED and not busy:
                raise self._refused(link, "continue its session", error) from error
            return _Lost(f"the agent could not continue it: {text}", self._timeouts.busy_seconds if busy else None)
        except TimeoutError:
            return _Lost(f"the agent did not continue it within {self._timeouts.answer_seconds:g} s")
        except ConnectionError:
            return _Lost(f"the agent {await link.process.why_output_ended()} when it should continue it", 0)
        if answer.get("sessionId", session) != session:
            return _Lost("the agent answered with another session")
        # An unknown agent that sent the past before its answer keeps to the protocol.
        known = self._options.replay == "before" or (self._options.replay == "unknown" and link.heard_history)
        if method == "session_load" and not known:
            link.replays = self._timeouts.quiet_seconds, self._timeouts.answer_seconds
        await self._enter(link, session, answer)
        return None
