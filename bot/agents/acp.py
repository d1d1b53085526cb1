"""Agents that speak the Agent Client Protocol, version 1, on stdio: https://agentclientprotocol.com/protocol/overview"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import structlog
from acp import RequestError
from acp.schema import SessionNotification

from bot.agents.acp_link import Link, error_text
from bot.agents.acp_open import OpenTimeouts, open_session
from bot.agents.acp_progress import AcpProgress, Answered
from bot.agents.driver import (
    AgentDriver,
    AgentEvent,
    Cancelled,
    Failed,
    Launch,
    Limits,
    Opened,
    OpenFailed,
    Outcome,
    TimedOut,
)
from bot.agents.presets import SessionOptions
from bot.agents.prompt_loop import INBOX_ITEMS, Broken, Stopped, follow
from bot.messages import reasons

Check = Callable[[str | None], Awaitable[OpenFailed | None]]
Inbox = asyncio.Queue[SessionNotification | Answered | Broken]

_log = structlog.get_logger()


@asynccontextmanager
async def acp_agent(
    launch: Launch,
    timeouts: OpenTimeouts | None = None,
    options: SessionOptions | None = None,
    check: Check | None = None,
) -> AsyncIterator[AgentDriver]:
    """Yield a driver for this agent. It starts with `open`. When the context ends, its process group has ended.

    `check` is called before each opening, with the session to continue, and can refuse it.
    """
    driver = AcpDriver(launch, timeouts or OpenTimeouts(), options or SessionOptions(), check)
    try:
        yield driver
    finally:
        await driver.close()


class AcpDriver:
    """See `AgentDriver`."""

    def __init__(self, launch: Launch, timeouts: OpenTimeouts, options: SessionOptions, check: Check | None) -> None:
        self._launch = launch
        self._timeouts = timeouts
        self._options = options
        self._check = check
        self._open: tuple[Link, str] | None = None

    async def open(self, resume: str | None) -> Opened | OpenFailed:
        await self.close()
        if self._check is not None and (refused := await self._check(resume)) is not None:
            return refused
        result = await open_session(self._launch, self._timeouts, self._options, resume)
        if isinstance(result, OpenFailed):
            return result
        link, opened = result
        self._open = (link, opened.assistant_session_id)
        return opened

    async def close(self) -> None:
        held, self._open = self._open, None
        if held is not None:
            await held[0].close()

    async def prompt(
        self,
        blocks: Sequence[str],
        limits: Limits,
        stop: asyncio.Event,
        on_event: Callable[[AgentEvent], None],
    ) -> Outcome:
        if self._open is None:
            raise RuntimeError("a prompt needs an open session")
        if stop.is_set():
            return Cancelled()
        link, session = self._open
        inbox = Inbox(INBOX_ITEMS)
        asking = asyncio.create_task(_ask(link, session, blocks, inbox))
        try:
            ended = await follow(inbox, limits, stop, AcpProgress(), on_event)
            if isinstance(ended, Stopped | TimedOut):
                await self._cancel(link, session, asking, limits.cancel_grace_seconds)
        finally:
            link.unlisten()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        match ended:
            case Broken(reason):
                return Failed(reason, link.process.stderr_tail)
            case Stopped():
                return Cancelled()
            case _:
                return ended

    async def _cancel(self, link: Link, session: str, asking: asyncio.Task[None], grace_seconds: float) -> None:
        """Ask the agent to stop working. If it does not answer the prompt within the grace, end it."""
        link.unlisten()
        if not asking.done():
            with suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(grace_seconds):
                    await link.cancel(session)
                    await asyncio.wait({asking})
        if not asking.done():
            _log.info("agent-did-not-cancel", session=session)
            await self.close()


async def _ask(link: Link, session: str, blocks: Sequence[str], inbox: Inbox) -> None:
    params = {"sessionId": session, "prompt": [{"type": "text", "text": block} for block in blocks]}
    link.listen(session, inbox.put_nowait)
    item: Answered | Broken
    try:
        item = Answered(await link.ask("session_prompt", params, seconds=None))
    except RequestError as error:
        item = Broken(reasons.agent_error(error_text(error)))
    except ConnectionError:
        item = Broken(reasons.agent_gone(await link.process.why_output_ended()))
    await inbox.put(item)
