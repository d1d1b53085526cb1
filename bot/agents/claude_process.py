"""Claude Code as a process, as the transport that `claude-agent-sdk` speaks through.

The SDK's own transport is not used: it hands on the bot's whole environment, ends one process instead of its group,
and takes no line over 1 MB.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import structlog
from claude_agent_sdk import Transport

from bot.agents.driver import Launch
from bot.agents.process import AgentProcess

# https://docs.claude.com/en/docs/claude-code/cli-reference
STREAMS_JSON = ("--output-format", "stream-json", "--input-format", "stream-json", "--verbose")
# Nothing is loaded that a repository could bring: hooks, MCP servers, environment, permissions, plugins.
CLOSED = ("--setting-sources=", "--strict-mcp-config")
UNATTENDED = ("--permission-mode", "bypassPermissions", "--disallowedTools", "AskUserQuestion")
# So that a long answer is heard while it is written.
HEARD = ("--include-partial-messages",)

_log = structlog.get_logger()


class _Process(AgentProcess):
    """Its messages are JSON objects, but no JSON-RPC."""

    async def objects(self) -> AsyncIterator[dict[str, Any]]:
        """Every message until the end of the stream; what else found its way to stdout is skipped."""
        while True:
            try:
                line = await self._stdout.readline()
            except (ValueError, ConnectionError) as error:
                _log.warning("agent-output-broken", error=str(error))
                return
            if not line:
                return
            message = _message(line)
            if message is None:
                _log.debug("agent-output-skipped", line=line[:200].decode(errors="replace"))
            else:
                yield message

    async def write(self, data: str) -> None:
        """Raises ConnectionError when it reads no more."""
        self._stdin.write(data.encode())
        await self._stdin.drain()


class ClaudeProcess(Transport):
    """Claude Code in stream-json mode; `session` are the arguments that choose its session."""

    def __init__(self, launch: Launch, session: tuple[str, ...]) -> None:
        argv = (*launch.argv, *STREAMS_JSON, *CLOSED, *UNATTENDED, *HEARD, *session)
        self._launch = Launch(argv, launch.environment, launch.cwd)
        self._process: _Process | None = None
        self.ended = asyncio.Event()

    @property
    def stderr_tail(self) -> str:
        return self._process.stderr_tail if self._process else ""

    async def connect(self) -> None:
        """Start it. Raises OSError if that cannot be done."""
        started = await _Process.start(self._launch)
        assert isinstance(started, _Process)  # noqa: S101 - `start` makes what it is called on
        self._process = started

    async def write(self, data: str) -> None:
        if self._process is None:
            raise ConnectionError("Claude Code is not running")
        await self._process.write(data)

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        if self._process is not None:
            async for message in self._process.objects():
                yield message
        # The SDK tells nobody who waits for an answer that there will be none.
        self.ended.set()

    async def close(self) -> None:
        """End it with all its processes."""
        if self._process is not None:
            await self._process.end()

    def is_ready(self) -> bool:
        return self._process is not None

    async def end_input(self) -> None:
        if self._process is not None:
            await self._process.close()

    async def how_it_ended(self) -> str:
        """The end of a process whose output ended, as the predicate of a sentence."""
        status = await self._process.exit_status() if self._process else None
        if status is None:
            return "closed its connection"
        return f"ended with exit status {status}" if status >= 0 else f"was ended by signal {-status}"


def _message(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and isinstance(value.get("type"), str) else None
