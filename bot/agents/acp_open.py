"""Start an ACP agent and open a session: the stored one if the agent can continue it, else a new one.

Set-up: https://agentclientprotocol.com/protocol/initialization and …/session-setup
"""

import asyncio
import shlex
from dataclasses import dataclass
from typing import Any

from acp import PROTOCOL_VERSION, RequestError

from bot.agents.acp_link import Link, as_object, error_text
from bot.agents.driver import Launch, Opened, OpenFailed
from bot.agents.presets import SessionOptions
from bot.agents.process import AgentProcess
from bot.sandbox import command_of

_AUTH_REQUIRED = RequestError.auth_required().code
_BUSY = ("busy", "active writer")
_CLIENT = {
    "protocolVersion": PROTOCOL_VERSION,
    "clientCapabilities": {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
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


async def open_session(
    launch: Launch, timeouts: OpenTimeouts, options: SessionOptions, resume: str | None
) -> tuple[Link, Opened] | OpenFailed:
    """Return a running agent with a session, which the caller must close. Otherwise no process is left."""
    opening = _Opening(launch, timeouts, options)
    try:
        opened = await opening.session(resume)
        link = await opening.link()
    except _CannotOpenError as error:
        await opening.close()
        return error.failure
    except BaseException:
        await opening.close()
        raise
    return link, opened


class _CannotOpenError(Exception):
    def __init__(self, reason: str, next_step: str, stderr_tail: str = "") -> None:
        super().__init__(reason)
        self.failure = OpenFailed(reason, next_step, stderr_tail)


class _Opening:
    def __init__(self, launch: Launch, timeouts: OpenTimeouts, options: SessionOptions) -> None:
        self._launch = launch
        self._timeouts = timeouts
        self._options = options
        self._command = shlex.join(command_of(launch.argv))
        self._link: Link | None = None

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def link(self) -> Link:
        """Return the running agent; start and initialize it if there is none."""
        if self._link is None:
            self._link = Link(await self._start())
            await self._initialize(self._link)
        return self._link

    async def session(self, resume: str | None) -> Opened:
        lost = None
        if resume is not None:
            continued = await self._continue(resume)
            if isinstance(continued, Opened):
                return continued
            lost = continued
        link = await self.link()
        answer = await self._must_answer(link, "session_new", self._place(), "begin a session")
        session = answer.get("sessionId")
        if not isinstance(session, str) or not session:
            raise _CannotOpenError(
                f"`{self._command}` began a session without an id.", "Update the agent.", link.process.stderr_tail
            )
        await self._choose_mode(link, session, answer)
        return Opened(session, resumed=False, lost=lost)

    def _place(self) -> dict[str, Any]:
        meta = {"_meta": dict(self._options.meta)} if self._options.meta else {}
        return {"cwd": str(self._launch.cwd), "mcpServers": [], **meta}

    async def _choose_mode(self, link: Link, session: str, answer: dict[str, Any]) -> None:
        """https://agentclientprotocol.com/protocol/session-modes"""
        modes = as_object(answer.get("modes"))
        offered = [as_object(mode).get("id") for mode in modes.get("availableModes") or ()]
        if self._options.mode in offered and modes.get("currentModeId") != self._options.mode:
            params = {"sessionId": session, "modeId": self._options.mode}
            await self._must_answer(link, "session_set_mode", params, "work unattended")

    async def _start(self) -> AgentProcess:
        try:
            return await AgentProcess.start(self._launch)
        except OSError as error:
            raise _CannotOpenError(
                f"`{self._command}` could not be started: {error.strerror}: {_failed_path(self._launch)}",
                "Check AGENT_COMMAND, and that the worktree's directory is there.",
            ) from error

    async def _initialize(self, link: Link) -> None:
        answer = await self._must_answer(link, "initialize", _CLIENT, "start")
        version = answer.get("protocolVersion")
        if version != PROTOCOL_VERSION:
            raise _CannotOpenError(
                f"`{self._command}` speaks version {version} of the Agent Client Protocol, not {PROTOCOL_VERSION}.",
                "Install a version of the agent that speaks it.",
                link.process.stderr_tail,
            )
        link.capabilities = as_object(answer.get("agentCapabilities"))

    async def _must_answer(self, link: Link, method: str, params: dict[str, Any], what: str) -> dict[str, Any]:
        try:
            return await link.ask(method, params, self._timeouts.answer_seconds)
        except RequestError as error:
            raise self._refused(link, what, error) from error
        except TimeoutError as error:
            how = f"gave no answer within {self._timeouts.answer_seconds:g} s"
            raise self._silent(link, what, how) from error
        except ConnectionError as error:
            raise self._silent(link, what, await link.process.why_output_ended()) from error

    def _refused(self, link: Link, what: str, error: RequestError) -> _CannotOpenError:
        text, tail = error_text(error), link.process.stderr_tail
        if error.code == _AUTH_REQUIRED:
            step = "Give the agent its key or login. AGENT_ENV names the variables that it gets."
            return _CannotOpenError(f"`{self._command}` wants to be logged in: {text}", step, tail)
        step = "Look this error up in the agent's documentation."
        return _CannotOpenError(f"`{self._command}` could not {what}: {text}", step, tail)

    def _silent(self, link: Link, what: str, how: str) -> _CannotOpenError:
        return _CannotOpenError(
            f"`{self._command}` {how} when asked to {what}.",
            "Check that AGENT_COMMAND is a program that is installed and speaks the Agent Client Protocol on stdio.",
            link.process.stderr_tail,
        )

    async def _continue(self, session: str) -> Opened | str:
        """Continue the stored session, or return the reason why not. A failure that can be temporary is tried again.

        After a failed attempt the agent is ended: a half-loaded session must not affect the new one.
        """
        reason, temporary = await self._try_to_continue(session)
        if isinstance(reason, str) and temporary:
            reason, _ = await self._try_to_continue(session)
        return reason

    async def _try_to_continue(self, session: str) -> tuple[Opened | str, bool]:
        """Return the session or the reason, and whether the reason can be temporary."""
        link = await self.link()
        method = _continue_method(link.capabilities)
        if method is None:
            return "the agent cannot continue earlier sessions", False
        params = {"sessionId": session, **self._place()}
        try:
            answer = await link.ask(method, params, self._timeouts.answer_seconds)
        except RequestError as error:
            text = error_text(error)
            busy = any(word in text.lower() for word in _BUSY)
            if error.code == _AUTH_REQUIRED and not busy:
                raise self._refused(link, "continue its session", error) from error
            await self.close()
            if busy:
                await asyncio.sleep(self._timeouts.busy_seconds)
            return f"the agent could not continue it: {text}", busy
        except TimeoutError:
            await self.close()
            return f"the agent did not continue it within {self._timeouts.answer_seconds:g} s", False
        except ConnectionError:
            how = await link.process.why_output_ended()
            await self.close()
            return f"the agent {how} when it should continue it", True
        if answer.get("sessionId", session) != session:
            await self.close()
            return "the agent answered with another session", False
        if method == "session_load" and self._options.replays_after_load:
            await link.silence(self._timeouts.quiet_seconds, self._timeouts.answer_seconds)
        await self._choose_mode(link, session, answer)
        return Opened(session, resumed=True, lost=None), False


def _failed_path(launch: Launch) -> str:
    """Return the path that a failed start is about: uvloop's errors do not name it."""
    return launch.argv[0] if launch.cwd.is_dir() else str(launch.cwd)


def _continue_method(capabilities: dict[str, Any]) -> str | None:
    """Return the announced method that continues a session; `{}` announces `session/resume`."""
    if as_object(capabilities.get("sessionCapabilities")).get("resume") is not None:
        return "session_resume"
    return "session_load" if capabilities.get("loadSession") is True else None
