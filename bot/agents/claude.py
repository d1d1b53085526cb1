"""Claude Code through `claude-agent-sdk`: https://docs.claude.com/en/api/agent-sdk/python

This module, `claude_process` and `claude_progress` need the extra `claude`. `driver_for` imports them when a session is
opened.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import structlog
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, Message, ResultMessage

from bot.agents.claude_process import ClaudeProcess
from bot.agents.claude_progress import ClaudeProgress
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
from bot.agents.prompt_loop import INBOX_ITEMS, Broken, Stopped, follow
from bot.messages import reasons

START_SECONDS = 60.0
# What Claude Code writes to stderr when it cannot continue a session.
_LOST_SESSION_ERRORS = ("no conversation found", "not a uuid", "requires a valid session id")

Inbox = asyncio.Queue[Message | Broken]

_log = structlog.get_logger()


@asynccontextmanager
async def claude_agent(launch: Launch, start_seconds: float = START_SECONDS) -> AsyncIterator[AgentDriver]:
    """Yield a driver for Claude Code. It starts with `open`. When the context ends, its process group has ended."""
    driver = ClaudeDriver(launch, start_seconds)
    try:
        yield driver
    finally:
        await driver.close()


class _Running:
    """A started Claude Code. Between prompts, what it sends is dropped."""

    def __init__(self, process: ClaudeProcess, session: str) -> None:
        self.process = process
        self.session = session
        # Prompts quote what other people wrote: `@/path` in them names no file to read, `/word` no command to run.
        self.client = ClaudeSDKClient(ClaudeAgentOptions(verbatim_prompts=True), transport=process)
        self._receiving: asyncio.Task[None] | None = None
        self._inbox: Inbox | None = None
        self._broken: Broken | None = None

    async def connect(self, seconds: float) -> str | None:
        """Start the program and the protocol; return the reason if that failed. Raises OSError."""
        connecting = asyncio.create_task(self.client.connect())
        ended = asyncio.create_task(self.process.ended.wait())
        try:
            await asyncio.wait({connecting, ended}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not connecting.done():
                return await self.process.why_output_ended() if ended.done() else f"gave no answer within {seconds:g} s"
            connecting.result()
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - the SDK raises plain Exception for what the program answered
            return f"answered with an error: {error}"
        finally:
            for task in (connecting, ended):
                task.cancel()
            await asyncio.gather(connecting, ended, return_exceptions=True)
        self._receiving = asyncio.create_task(self._receive())
        return None

    async def ask(self, blocks: Sequence[str]) -> None:
        """Send one prompt. Raises ConnectionError."""

        async def message() -> AsyncIterator[dict[str, Any]]:
            content = [{"type": "text", "text": block} for block in blocks]
            yield {"type": "user", "message": {"role": "user", "content": content}, "parent_tool_use_id": None}

        await self.client.query(message(), self.session)

    async def close(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.gather(self._receiving, return_exceptions=True)
        try:
            await self.client.disconnect()
        finally:
            await self.process.close()

    def listen(self) -> Inbox:
        """Return the queue that gets the messages of one prompt."""
        self._inbox = Inbox(INBOX_ITEMS)
        if self._broken is not None:
            self._inbox.put_nowait(self._broken)
        return self._inbox

    def unlisten(self) -> None:
        inbox, self._inbox = self._inbox, None
        while inbox is not None and not inbox.empty():
            inbox.get_nowait()  # `_receive` may wait for room

    async def _receive(self) -> None:
        try:
            async for message in self.client.receive_messages():
                if self._inbox is not None:
                    await self._inbox.put(message)
        except Exception as error:  # noqa: BLE001 - the SDK raises plain Exception for a message that it cannot read
            self._broken = Broken(reasons.agent_unreadable(str(error)))
        else:
            self._broken = Broken(reasons.agent_gone(await self.process.why_output_ended()))
        if self._inbox is not None:
            await self._inbox.put(self._broken)


class ClaudeDriver:
    """See `AgentDriver`."""

    def __init__(self, launch: Launch, start_seconds: float) -> None:
        self._launch = launch
        self._start_seconds = start_seconds
        self._running: _Running | None = None

    async def open(self, resume: str | None) -> Opened | OpenFailed:
        await self.close()
        if resume is None:
            return await self._begin(None)
        failure = await self._start(resume, f"--resume={resume}")
        if failure is None:
            return Opened(resume, resumed=True, lost=None)
        tail = failure.stderr_tail.lower()
        if not any(words in tail for words in _LOST_SESSION_ERRORS):
            # The failure can be temporary, or have nothing to do with the session.
            failure = await self._start(resume, f"--resume={resume}")
            if failure is None:
                return Opened(resume, resumed=True, lost=None)
        return await self._begin(f"Claude could not continue it: {failure.stderr_tail or failure.reason}")

    async def close(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.close()

    async def prompt(
        self,
        blocks: Sequence[str],
        limits: Limits,
        stop: asyncio.Event,
        on_event: Callable[[AgentEvent], None],
    ) -> Outcome:
        running = self._running
        if running is None:
            raise RuntimeError("a prompt needs an open session")
        if stop.is_set():
            return Cancelled()
        inbox = running.listen()
        try:
            await running.ask(blocks)
            ended = await follow(inbox, limits, stop, ClaudeProgress(running.session), on_event)
            if isinstance(ended, Stopped | TimedOut):
                await self._cancel(running, inbox, limits.cancel_grace_seconds)
        except ConnectionError:
            ended = Broken(reasons.agent_gone(await running.process.why_output_ended()))
        finally:
            running.unlisten()
        match ended:
            case Broken(reason):
                await self.close()
                return Failed(reason, running.process.stderr_tail)
            case Stopped():
                return Cancelled()
            case _:
                return ended

    async def _begin(self, lost: str | None) -> Opened | OpenFailed:
        session = str(uuid.uuid4())
        return await self._start(session, f"--session-id={session}") or Opened(session, resumed=False, lost=lost)

    async def _start(self, session: str, choice: str) -> OpenFailed | None:
        process = ClaudeProcess(self._launch, (choice,))
        running = _Running(process, session)
        try:
            why = await running.connect(self._start_seconds)
        except OSError as error:
            return OpenFailed(
                f"Claude Code could not be started: {error.strerror}",
                "Check that the worktree's directory is there, and AGENT_COMMAND if it is set.",
                "",
            )
        except BaseException:
            await running.close()
            raise
        if why is None:
            self._running = running
            return None
        await running.close()
        return OpenFailed(
            f"Claude Code {why} when asked to start.",
            "The end of its output says why. `threadtree doctor` starts it without a turn.",
            process.stderr_tail,
        )

    async def _cancel(self, running: _Running, inbox: Inbox, grace_seconds: float) -> None:
        """Ask Claude to stop working. If it does not end its prompt within the grace, end it."""
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(grace_seconds):
                interrupting = asyncio.create_task(running.client.interrupt())
                try:
                    while not isinstance(await inbox.get(), ResultMessage | Broken):
                        pass
                    return
                finally:
                    interrupting.cancel()
                    await asyncio.gather(interrupting, return_exceptions=True)
        _log.info("agent-did-not-cancel", session=running.session)
        await self.close()
