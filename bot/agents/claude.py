"""Claude Code through `claude-agent-sdk`: https://docs.claude.com/en/api/agent-sdk/python

This module and `claude_progress` need the extra `claude`. `driver_for` imports them when a session is opened.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

import structlog
from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    Message,
    PermissionResultDeny,
    ResultMessage,
    ToolPermissionContext,
    Transport,
)

from bot.agents.claude_progress import ASKS_PERSON, ClaudeProgress
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
    TimedOut,
)
from bot.agents.process import AgentProcess
from bot.agents.prompt_loop import INBOX_ITEMS, follow
from bot.messages import reasons
from bot.tasks import concurrently, unless

START_SECONDS = 60.0
# What Claude Code writes to stderr when it cannot continue a session.
_LOST_SESSION_ERRORS = ("no conversation found", "not a uuid", "requires a valid session id")
# https://docs.claude.com/en/docs/claude-code/cli-reference
_STREAM_JSON = ("--output-format", "stream-json", "--input-format", "stream-json", "--verbose")
# Nothing of a repository is loaded: hooks, MCP servers, environment, permissions, plugins.
_NO_REPOSITORY_SETTINGS = ("--setting-sources=", "--strict-mcp-config")
# Claude asks for no permission, but its questions to a person come as such.
_UNATTENDED = ("--permission-mode", "bypassPermissions", "--permission-prompt-tool", "stdio")
# A long answer counts as work while it is written.
_PARTIAL_MESSAGES = ("--include-partial-messages",)

Inbox = asyncio.Queue[Message | Failed]

_log = structlog.get_logger()


async def _permission(tool: str, _: dict[str, Any], __: ToolPermissionContext) -> PermissionResultDeny:
    """Deny what needs a person. A question ends Claude's work: the person answers in the next prompt."""
    return PermissionResultDeny(message="Nobody answers while you work.", interrupt=tool == ASKS_PERSON)


class _ClaudeTransport(Transport):
    """The connection of the SDK to a running Claude Code.

    The SDK's own transport is not used: it passes the bot's whole environment on and ends one process, not its group.
    """

    def __init__(self, process: AgentProcess) -> None:
        self._process = process
        self.ended = asyncio.Event()

    async def connect(self) -> None:
        """Do nothing: the process is running."""

    async def write(self, data: str) -> None:
        await self._process.write(data)

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        while (message := await self._process.read_object()) is not None:
            if isinstance(message.get("type"), str):
                yield message
        # The SDK does not tell a caller that waits for an answer that there will be none.
        self.ended.set()

    async def close(self) -> None:
        await self._process.end()

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None:
        self._process.close_stdin()


class _Running:
    """A started Claude Code. Between prompts, what it sends is dropped."""

    def __init__(self, process: AgentProcess, session: str) -> None:
        self.process = process
        self.session = session
        self._transport = _ClaudeTransport(process)
        # Prompts quote what other people wrote: `@/path` in them names no file to read, `/word` no command to run.
        options = ClaudeAgentOptions(verbatim_prompts=True, can_use_tool=_permission)
        self.client = ClaudeSDKClient(options, transport=self._transport)
        self._receiving: asyncio.Task[None] | None = None
        self._inbox: Inbox | None = None
        self._broken: Failed | None = None

    async def connect(self, seconds: float) -> str | None:
        """Start the protocol; return the reason if that failed."""

        async def ended() -> NoReturn:
            await self._transport.ended.wait()
            raise ConnectionError

        try:
            async with asyncio.timeout(seconds):
                await unless(ended(), self.client.connect())
        except TimeoutError:
            return f"gave no answer within {seconds:g} s"
        except ConnectionError:
            return await self.process.why_output_ended()
        except Exception as error:  # noqa: BLE001 - the SDK raises plain Exception for what the program answered
            return f"answered with an error: {error}"
        self._receiving = asyncio.create_task(self._receive())
        return None

    async def ask(self, content: list[dict[str, Any]], inbox: Inbox) -> None:
        """Send one prompt. Claude reads one that is longer than the pipe when it likes to: nothing waits for that."""

        async def message() -> AsyncIterator[dict[str, Any]]:
            yield {"type": "user", "message": {"role": "user", "content": content}, "parent_tool_use_id": None}

        try:
            await self.client.query(message(), self.session)
        except ConnectionError:
            await inbox.put(Failed(reasons.agent_gone(await self.process.why_output_ended())))

    async def close(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.gather(self._receiving, return_exceptions=True)
        try:
            await self.client.disconnect()
        finally:
            await self.process.end()

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
            self._broken = Failed(reasons.agent_unreadable(str(error)))
        else:
            self._broken = Failed(reasons.agent_gone(await self.process.why_output_ended()))
        if self._inbox is not None:
            await self._inbox.put(self._broken)


def _content(block: Block) -> dict[str, Any]:
    """Return a block as the Messages API takes it: https://docs.claude.com/en/api/messages. Raises OSError."""
    if isinstance(block, str):
        return {"type": "text", "text": block}
    return {"type": "image", "source": {"type": "base64", "media_type": block.media_type, "data": block.base64()}}


class ClaudeDriver:
    """See `AgentDriver`."""

    def __init__(self, launch: Launch, start_seconds: float = START_SECONDS) -> None:
        self._launch = launch
        self._start_seconds = start_seconds
        self._running: _Running | None = None

    async def open(self, resume: str | None) -> SessionOpened | OpenFailed:
        await self.aclose()
        if resume is None:
            return await self._begin(None)
        failure = await self._start(resume, f"--resume={resume}")
        if failure is not None and not any(words in failure.stderr_tail.lower() for words in _LOST_SESSION_ERRORS):
            # The failure can be temporary, or have nothing to do with the session.
            failure = await self._start(resume, f"--resume={resume}")
        if failure is None:
            return SessionOpened(resume, resumed=True, lost=None)
        return await self._begin(f"Claude could not continue it: {failure.stderr_tail or failure.reason}")

    async def aclose(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.close()

    async def prompt(
        self,
        blocks: Sequence[Block],
        limits: PromptLimits,
        stop: asyncio.Event,
        on_event: Callable[[AgentEvent], None],
    ) -> Outcome:
        running = self._running
        if running is None:
            raise RuntimeError("a prompt needs an open session")
        if stop.is_set():
            return Cancelled()
        content = await asyncio.to_thread(lambda: [_content(block) for block in blocks])
        inbox = running.listen()
        async with concurrently(running.ask(content, inbox)):
            try:
                ended = await follow(inbox, limits, stop, ClaudeProgress(running.session), on_event)
                if isinstance(ended, Cancelled | TimedOut):
                    await self._cancel(running, inbox, limits.cancel_grace_seconds)
            finally:
                running.unlisten()
        if isinstance(ended, Failed):
            await self.aclose()
            return replace(ended, stderr_tail=running.process.stderr_tail)
        return ended

    async def _begin(self, lost: str | None) -> SessionOpened | OpenFailed:
        session = str(uuid.uuid4())
        return await self._start(session, f"--session-id={session}") or SessionOpened(session, resumed=False, lost=lost)

    async def _start(self, session: str, choice: str) -> OpenFailed | None:
        argv = (*self._launch.argv, *_STREAM_JSON, *_NO_REPOSITORY_SETTINGS, *_UNATTENDED, *_PARTIAL_MESSAGES, choice)
        try:
            process = await AgentProcess.start(replace(self._launch, argv=argv))
        except OSError as error:
            return OpenFailed(
                f"Claude Code could not be started: {error.strerror}",
                "Check that the worktree's directory is there, and AGENT_COMMAND if it is set.",
                "",
            )
        self._running = _Running(process, session)
        why = await self._running.connect(self._start_seconds)
        if why is None:
            return None
        await self.aclose()
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
                    while not isinstance(await inbox.get(), ResultMessage | Failed):
                        pass
                    return
                finally:
                    interrupting.cancel()
                    await asyncio.gather(interrupting, return_exceptions=True)
        _log.info("agent-did-not-cancel", session=running.session)
        await self.aclose()
