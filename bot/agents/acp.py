"""Agents that speak the Agent Client Protocol, version 1, on stdio: https://agentclientprotocol.com/protocol/overview"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import structlog
from acp import RequestError

from bot.agents.acp_link import Link, in_its_words
from bot.agents.acp_open import Patience, Wishes, open_session
from bot.agents.acp_progress import Answered, Broken, Inbox, PromptProgress, Stopped, follow
from bot.agents.driver import (
    AgentDriver,
    AgentEvent,
    Cancelled,
    Completed,
    Failed,
    Launch,
    Limits,
    Opened,
    OpenFailed,
    Outcome,
    TimedOut,
)

_log = structlog.get_logger()


@asynccontextmanager
async def acp_agent(
    launch: Launch, patience: Patience | None = None, wishes: Wishes | None = None
) -> AsyncIterator[AgentDriver]:
    """A driver for this agent. It starts with `open`; when the context ends, its whole process group has ended."""
    driver = AcpDriver(launch, patience or Patience(), wishes or Wishes())
    try:
        yield driver
    finally:
        await driver.close()


class AcpDriver:
    """See `AgentDriver`."""

    def __init__(self, launch: Launch, patience: Patience, wishes: Wishes) -> None:
        self._launch = launch
        self._patience = patience
        self._wishes = wishes
        self._open: tuple[Link, str] | None = None

    async def open(self, resume: str | None) -> Opened | OpenFailed:
        await self.close()
        result = await open_session(self._launch, self._patience, self._wishes, resume)
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
        inbox: Inbox = asyncio.Queue()
        progress = PromptProgress()
        asking = asyncio.create_task(_ask(link, session, blocks, inbox))
        stopping = asyncio.create_task(_await_stop(stop, inbox))
        try:
            match await follow(inbox, limits, progress, on_event):
                case Answered(result):
                    return _outcome(result, progress, link.process.stderr_tail)
                case Broken(error):
                    reason = await _why_broken(link, error)
                    return Failed(reason, link.process.stderr_tail)
                case Stopped():
                    await self._leave_prompt(link, session, asking, limits.cancel_grace_seconds)
                    return Cancelled()
                case TimedOut() as timed_out:
                    await self._leave_prompt(link, session, asking, limits.cancel_grace_seconds)
                    return timed_out
        finally:
            link.unlisten()
            asking.cancel()
            stopping.cancel()
            await asyncio.gather(asking, stopping, return_exceptions=True)

    async def _leave_prompt(self, link: Link, session: str, asking: asyncio.Task[None], grace_seconds: float) -> None:
        """Ask the agent to stop working; if it does not answer the prompt within the grace, end it."""
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
    try:
        inbox.put_nowait(Answered(await link.ask("session_prompt", params, seconds=None)))
    except (RequestError, ConnectionError) as error:
        inbox.put_nowait(Broken(error))


async def _await_stop(stop: asyncio.Event, inbox: Inbox) -> None:
    await stop.wait()
    inbox.put_nowait(Stopped())


async def _why_broken(link: Link, error: RequestError | ConnectionError) -> str:
    if isinstance(error, RequestError):
        return f"The agent reported an error: {in_its_words(error)}"
    return f"The agent {await link.process.why_output_ended()} in the middle of its work."


def _outcome(answer: Mapping[str, Any], progress: PromptProgress, stderr_tail: str) -> Outcome:
    """What a stop reason means: https://agentclientprotocol.com/protocol/prompt-turn#stop-reasons"""
    match answer.get("stopReason"):
        case "cancelled":
            return Cancelled()
        case "end_turn" if progress.text.strip():
            return Completed(progress.text, progress.usage(answer))
        case "end_turn":
            reason = "The agent ended without an answer."
        case "refusal":
            reason = "The agent refused to go on (stop reason `refusal`)."
        case "max_tokens":
            reason = "The agent reached its limit of tokens (stop reason `max_tokens`)."
        case "max_turn_requests":
            reason = "The agent reached its limit of model requests in a turn (stop reason `max_turn_requests`)."
        case other:
            reason = f"The agent stopped for a reason that is not known here: `{other!s}`."
    return Failed(reason, stderr_tail)
