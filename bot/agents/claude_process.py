"""Claude Code as a process, as the transport that `claude-agent-sdk` speaks through.

The SDK's own transport is not used: it passes the bot's whole environment on and ends one process, not its group.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from claude_agent_sdk import Transport

from bot.agents.driver import Launch
from bot.agents.process import AgentProcess

# https://docs.claude.com/en/docs/claude-code/cli-reference
_STREAM_JSON = ("--output-format", "stream-json", "--input-format", "stream-json", "--verbose")
# Nothing of a repository is loaded: hooks, MCP servers, environment, permissions, plugins.
_NO_REPOSITORY_SETTINGS = ("--setting-sources=", "--strict-mcp-config")
_UNATTENDED = ("--permission-mode", "bypassPermissions", "--disallowedTools", "AskUserQuestion")
# A long answer counts as work while it is written.
_PARTIAL_MESSAGES = ("--include-partial-messages",)


class ClaudeProcess(Transport):
    """Claude Code in stream-json mode; `session` is the arguments that choose its session."""

    def __init__(self, launch: Launch, session: tuple[str, ...]) -> None:
        argv = (*launch.argv, *_STREAM_JSON, *_NO_REPOSITORY_SETTINGS, *_UNATTENDED, *_PARTIAL_MESSAGES, *session)
        self._launch = Launch(argv, launch.environment, launch.cwd)
        self._process: AgentProcess | None = None
        self.ended = asyncio.Event()

    @property
    def stderr_tail(self) -> str:
        return self._process.stderr_tail if self._process else ""

    async def connect(self) -> None:
        """Start it. Raises OSError if that cannot be done."""
        self._process = await AgentProcess.start(self._launch)

    async def write(self, data: str) -> None:
        if self._process is None:
            raise ConnectionError("Claude Code is not running")
        await self._process.write(data)

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        if self._process is not None:
            while (message := await self._process.read_object()) is not None:
                if isinstance(message.get("type"), str):
                    yield message
        # The SDK does not tell a caller that waits for an answer that there will be none.
        self.ended.set()

    async def close(self) -> None:
        """End it and its process group."""
        if self._process is not None:
            await self._process.end()

    def is_ready(self) -> bool:
        return self._process is not None

    async def end_input(self) -> None:
        if self._process is not None:
            self._process.close_stdin()

    async def why_output_ended(self) -> str:
        """Return the reason why there is no more output, as the predicate of a sentence."""
        return await self._process.why_output_ended() if self._process else "is not running"
