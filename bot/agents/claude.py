"""Claude Code through `claude-agent-sdk`: https://docs.claude.com/en/api/agent-sdk/python

The one module, with `claude_process` and `claude_progress`, that needs the extra `claude`; it is imported when a
session is opened, by `driver_for`.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import structlog
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage

from bot.agents.claude_process import ClaudeProcess
from bot.agents.claude_progress import Broken, ClaudeProgress, Inbox, Stopped, follow
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

START_SECONDS = 60.0
LOST_WORDS = ("no conversation found", "not a uuid", "requires a valid session id")
"""What Claude Code says on stderr when it cannot continue a session."""

_log = structlog.get_logger()


@asynccontextmanager
async def claude_agent(launch: Launch, start_seconds: float = START_SECONDS) -> AsyncIterator[AgentDriver]:
    """A driver for Claude Code. It starts with `open`; when the context ends, its whole process group has ended."""
    driver = ClaudeDriver(launch, start_seconds)
    try:
        yield driver
    finally:
        await driver.close()


class _Running:
    """A started Claude Code and what it sends, in the order it came."""

    def __init__(self, process: ClaudeProcess, session: str) -> None:
        self.process = process
        self.session = session
        self.inbox: Inbox = asyncio.Queue()
        # Prompts quote what other people wrote: `@/path` in them names no file to read, `/word` no command to run.
        self.client = ClaudeSDKClient(ClaudeAgentOptions(verbatim_prompts=True), transport=process)
        self._listening: asyncio.Task[None] | None = None

    async def connect(self, seconds: float) -> str | None:
        """Start it and greet it; why that failed, if it did. Raises OSError if it cannot be started."""
        greeting = asyncio.create_task(self.client.connect())
        ended = asyncio.create_task(self.process.ended.wait())
        try:
            await asyncio.wait({greeting, ended}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not greeting.done():
                return await self.process.why_output_ended() if ended.done() else f"gave no answer within {seconds:g} s"
            greeting.result()
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - the SDK raises plain Exception for what the program answered
            return f"answered with an error: {error}"
        finally:
            for task in (greeting, ended):
                task.cancel()
            await asyncio.gather(greeting, ended, return_exceptions=True)
        self._listening = asyncio.create_task(self._listen())
        return None

    async def ask(self, blocks: Sequence[str]) -> None:
        """Send one prompt. Raises ConnectionError."""

        async def message() -> AsyncIterator[dict[str, Any]]:
            content = [{"type": "text", "text": block} for block in blocks]
            yield {"type": "user", "message": {"role": "user", "content": content}, "parent_tool_use_id": None}

        await self.client.query(message(), self.session)

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        try:
            await self.client.disconnect()
        finally:
            await self.process.close()

    async def _listen(self) -> None:
        try:
            async for message in self.client.receive_messages():
                self.inbox.put_nowait(message)
        except Exception as error:  # noqa: BLE001 - whatever the SDK makes of a message that it cannot read
            self.inbox.put_nowait(Broken(f"Claude sent what could not be read: {error}"))
        else:
            self.inbox.put_nowait(Broken(f"Claude {await self.process.why_output_ended()} in the middle of its work."))


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
        if not any(words in tail for words in LOST_WORDS):
            # What went wrong may pass by itself, or have nothing to do with the session.
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
        _drain(running.inbox)
        stopping = asyncio.create_task(_await_stop(stop, running.inbox))
        progress = ClaudeProgress(running.session)
        try:
            await running.ask(blocks)
            match await follow(running.inbox, limits, progress, on_event):
                case Completed() as completed:
                    return completed
                case Broken(reason):
                    await self.close()
                    return Failed(reason, running.process.stderr_tail)
                case Stopped():
                    await self._leave_prompt(running, limits.cancel_grace_seconds)
                    return Cancelled()
                case TimedOut() as timed_out:
                    await self._leave_prompt(running, limits.cancel_grace_seconds)
                    return timed_out
        except ConnectionError:
            return Failed(f"Claude {await running.process.why_output_ended()}.", running.process.stderr_tail)
        finally:
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)

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
            "Its last words say why; `threadtree doctor` starts it without a turn.",
            process.stderr_tail,
        )

    async def _leave_prompt(self, running: _Running, grace_seconds: float) -> None:
        """Ask Claude to stop working; if it does not end its prompt within the grace, end it."""
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(grace_seconds):
                interrupting = asyncio.create_task(running.client.interrupt())
                try:
                    while not isinstance(await running.inbox.get(), ResultMessage | Broken):
                        pass
                    return
                finally:
                    interrupting.cancel()
                    await asyncio.gather(interrupting, return_exceptions=True)
        _log.info("agent-did-not-cancel", session=running.session)
        await self.close()


def _drain(inbox: Inbox) -> None:
    while not inbox.empty():
        inbox.get_nowait()


async def _await_stop(stop: asyncio.Event, inbox: Inbox) -> None:
    await stop.wait()
    inbox.put_nowait(Stopped())
