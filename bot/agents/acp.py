"""Agents that speak the Agent Client Protocol, version 1, on stdio: https://agentclientprotocol.com/protocol/overview"""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import structlog
from acp import PROTOCOL_VERSION, RequestError
from acp.schema import SessionNotification

from bot.agents.acp_link import AcpLink, as_object, error_status, error_text
from bot.agents.acp_progress import AcpProgress, Answered, FormAsked
from bot.agents.driver import (
    AgentEvent,
    Block,
    Cancelled,
    Failed,
    Launch,
    OpenFailed,
    Outcome,
    PromptLimits,
    SessionOpened,
)
from bot.agents.presets import SessionOptions
from bot.agents.process import AgentProcess
from bot.agents.prompt_loop import INBOX_ITEMS, follow
from bot.messages import reasons
from bot.sandbox import command_of
from bot.tasks import concurrently

Check = Callable[[str | None], Awaitable[OpenFailed | None]]
Inbox = asyncio.Queue[SessionNotification | Answered | FormAsked | Failed]

_AUTH_REQUIRED = RequestError.auth_required().code
_BUSY = ("busy", "active writer")
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

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class OpenTimeouts:
    """Seconds that opening waits: for each answer, for silence after a load, before asking a busy agent again."""

    answer_seconds: float = 60
    quiet_seconds: float = 0.5
    busy_seconds: float = 2


class _CannotOpenError(Exception):
    def __init__(self, reason: str, next_step: str, stderr_tail: str = "") -> None:
        super().__init__(reason)
        self.failure = OpenFailed(reason, next_step, stderr_tail)


class AcpDriver:
    """See `AgentDriver`. `check` is called before each opening, with the session to continue, and can refuse it."""

    def __init__(
        self,
        launch: Launch,
        timeouts: OpenTimeouts | None = None,
        options: SessionOptions | None = None,
        check: Check | None = None,
    ) -> None:
        self._launch = launch
        self._timeouts = timeouts or OpenTimeouts()
        self._options = options or SessionOptions()
        self._check = check
        self._command = shlex.join(command_of(launch.argv))
        self._link: AcpLink | None = None
        self._session: str | None = None
        self._replaying: asyncio.Task[None] | None = None

    async def open(self, resume: str | None) -> SessionOpened | OpenFailed:
        await self.aclose()
        if self._check is not None and (refused := await self._check(resume)) is not None:
            return refused
        try:
            opened = await self._open(resume)
        except _CannotOpenError as error:
            await self.aclose()
            return error.failure
        self._session = opened.assistant_session_id
        return opened

    async def aclose(self) -> None:
        link, self._link, self._session = self._link, None, None
        replaying, self._replaying = self._replaying, None
        if replaying is not None:
            replaying.cancel()
            await asyncio.gather(replaying, return_exceptions=True)
        if link is not None:
            await link.close()

    async def prompt(
        self,
        blocks: Sequence[Block],
        limits: PromptLimits,
        stop: asyncio.Event,
        on_event: Callable[[AgentEvent], None],
    ) -> Outcome:
        link, session = self._link, self._session
        if link is None or session is None:
            raise RuntimeError("a prompt needs an open session")
        if self._replaying is not None:
            await self._replaying
        if stop.is_set():
            return Cancelled()
        inbox = Inbox(INBOX_ITEMS)
        content = await asyncio.to_thread(content_of, blocks, link.capabilities)
        async with concurrently(_ask(link, session, content, inbox)) as asking:
            try:
                ended = await follow(inbox, limits, stop, AcpProgress(), on_event)
                if not asking.done():
                    await self._cancel(link, session, asking, limits.cancel_grace_seconds)
            finally:
                link.unlisten()
        return replace(ended, stderr_tail=link.process.stderr_tail) if isinstance(ended, Failed) else ended

    async def _cancel(self, link: AcpLink, session: str, asking: asyncio.Task[None], grace_seconds: float) -> None:
        """Ask the agent to stop working. If it does not answer the prompt within the grace, end it."""
        link.unlisten()
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(grace_seconds):
                await link.cancel(session)
                await asyncio.wait({asking})
        if not asking.done():
            _log.info("agent-did-not-cancel", session=session)
            await self.aclose()

    async def _open(self, resume: str | None) -> SessionOpened:
        lost = None
        if resume is not None:
            continued = await self._continue(resume)
            if isinstance(continued, SessionOpened):
                return continued
            lost = continued
        link = await self._running()
        answer = await self._must_answer(link, "session_new", self._place(), "begin a session")
        session = answer.get("sessionId")
        if not isinstance(session, str) or not session:
            raise _CannotOpenError(
                f"`{self._command}` began a session without an id.", "Update the agent.", link.process.stderr_tail
            )
        await self._choose_mode(link, session, answer)
        return SessionOpened(session, resumed=False, lost=lost)

    async def _running(self) -> AcpLink:
        """Return the running agent; start and initialize it if there is none."""
        if self._link is None:
            try:
                process = await AgentProcess.start(self._launch)
            except OSError as error:
                # uvloop's errors do not name the path.
                path = self._launch.argv[0] if self._launch.cwd.is_dir() else self._launch.cwd
                raise _CannotOpenError(
                    f"`{self._command}` could not be started: {error.strerror}: {path}",
                    "Check AGENT_COMMAND, and that the worktree's directory is there.",
                ) from error
            self._link = AcpLink(process)
            await self._initialize(self._link)
        return self._link

    def _place(self) -> dict[str, Any]:
        meta = {"_meta": dict(self._options.meta)} if self._options.meta else {}
        return {"cwd": str(self._launch.cwd), "mcpServers": [], **meta}

    async def _choose_mode(self, link: AcpLink, session: str, answer: dict[str, Any]) -> None:
        """https://agentclientprotocol.com/protocol/session-modes"""
        modes = as_object(answer.get("modes"))
        offered = [as_object(mode).get("id") for mode in modes.get("availableModes") or ()]
        if self._options.mode in offered and modes.get("currentModeId") != self._options.mode:
            params = {"sessionId": session, "modeId": self._options.mode}
            await self._must_answer(link, "session_set_mode", params, "work unattended")

    async def _initialize(self, link: AcpLink) -> None:
        answer = await self._must_answer(link, "initialize", _CLIENT, "start")
        version = answer.get("protocolVersion")
        if version != PROTOCOL_VERSION:
            raise _CannotOpenError(
                f"`{self._command}` speaks version {version} of the Agent Client Protocol, not {PROTOCOL_VERSION}.",
                "Install a version of the agent that speaks it.",
                link.process.stderr_tail,
            )
        link.capabilities = as_object(answer.get("agentCapabilities"))

    async def _must_answer(self, link: AcpLink, method: str, params: dict[str, Any], what: str) -> dict[str, Any]:
        try:
            return await link.ask(method, params, self._timeouts.answer_seconds)
        except RequestError as error:
            raise self._refused(link, what, error) from error
        except TimeoutError as error:
            how = f"gave no answer within {self._timeouts.answer_seconds:g} s"
            raise self._silent(link, what, how) from error
        except ConnectionError as error:
            raise self._silent(link, what, await link.process.why_output_ended()) from error

    def _refused(self, link: AcpLink, what: str, error: RequestError) -> _CannotOpenError:
        text, tail = error_text(error), link.process.stderr_tail
        if error.code == _AUTH_REQUIRED:
            step = "Give the agent its key or login. AGENT_ENV names the variables that it gets."
            return _CannotOpenError(f"`{self._command}` wants to be logged in: {text}", step, tail)
        step = "Look this error up in the agent's documentation."
        return _CannotOpenError(f"`{self._command}` could not {what}: {text}", step, tail)

    def _silent(self, link: AcpLink, what: str, how: str) -> _CannotOpenError:
        return _CannotOpenError(
            f"`{self._command}` {how} when asked to {what}.",
            "Check that AGENT_COMMAND is a program that is installed and speaks the Agent Client Protocol on stdio.",
            link.process.stderr_tail,
        )

    async def _continue(self, session: str) -> SessionOpened | str:
        """Continue the stored session, or return the reason why not. A failure that can be temporary is tried again.

        After a failed attempt the agent is ended: a half-loaded session must not affect the new one.
        """
        reason, temporary = await self._try_to_continue(session)
        if isinstance(reason, str) and temporary:
            reason, _ = await self._try_to_continue(session)
        return reason

    async def _try_to_continue(self, session: str) -> tuple[SessionOpened | str, bool]:
        """Return the session or the reason, and whether the reason can be temporary."""
        link = await self._running()
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
            await self.aclose()
            if busy:
                await asyncio.sleep(self._timeouts.busy_seconds)
            return f"the agent could not continue it: {text}", busy
        except TimeoutError:
            await self.aclose()
            return f"the agent did not continue it within {self._timeouts.answer_seconds:g} s", False
        except ConnectionError:
            how = await link.process.why_output_ended()
            await self.aclose()
            return f"the agent {how} when it should continue it", True
        if answer.get("sessionId", session) != session:
            await self.aclose()
            return "the agent answered with another session", False
        # An unknown agent that sent the past before its answer keeps to the protocol.
        known = self._options.replay == "before" or (self._options.replay == "unknown" and link.heard_history)
        if method == "session_load" and not known:
            quiet = link.silence(self._timeouts.quiet_seconds, self._timeouts.answer_seconds)
            self._replaying = asyncio.create_task(quiet)
        await self._choose_mode(link, session, answer)
        return SessionOpened(session, resumed=True, lost=None), False


def _continue_method(capabilities: dict[str, Any]) -> str | None:
    """Return the announced method that continues a session; `{}` announces `session/resume`."""
    if as_object(capabilities.get("sessionCapabilities")).get("resume") is not None:
        return "session_resume"
    return "session_load" if capabilities.get("loadSession") is True else None


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


async def _ask(link: AcpLink, session: str, content: list[dict[str, str]], inbox: Inbox) -> None:
    params = {"sessionId": session, "prompt": content}
    link.listen(session, inbox.put_nowait)
    item: Answered | Failed
    try:
        item = Answered(await link.ask("session_prompt", params, seconds=None))
    except RequestError as error:
        item = Failed(reasons.agent_error(error_text(error)), status=error_status(error))
    except ConnectionError:
        item = Failed(reasons.agent_gone(await link.process.why_output_ended()))
    await inbox.put(item)
