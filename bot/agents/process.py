"""A running agent: one JSON object a line on its stdin and stdout, the end of its stderr, the end of its group."""

import asyncio
import json
import re
from typing import Any

import structlog

from bot.agents.driver import Launch
from bot.json_values import UNCOUNTED_BYTES, has_many_values, storable
from bot.sandbox.process import OutputTail, ProcessGroup, start_speaking
from bot.thread import reasons

# asyncio's default of 64 kB is less than one diff of a big file.
MAX_LINE_BYTES = 2 * 1024 * 1024
# More than any agent has to say. A faster one waits: the bot's processor is for all turns.
MAX_BYTES_PER_SECOND = 8 * 1024 * 1024
_STDERR_TAIL_BYTES = 4096
_EXIT_SECONDS = 2.0
_UNSTORABLE_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")

_log = structlog.get_logger()


def parse_object(line: bytes) -> dict[str, Any] | None:
    """Return the line as a JSON object whose texts can be stored; None for any other line and for too many values."""
    if has_many_values(line):
        return None
    text = line.decode(errors="replace")
    try:
        value = json.loads(text)
        if _UNSTORABLE_ESCAPE.search(text):
            value = storable(value)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class AgentProcess:
    """A started agent. `end` must be called."""

    def __init__(self, group: ProcessGroup) -> None:
        if group.stdin is None or group.stdout is None:
            raise RuntimeError("an agent is spoken with over its stdin and stdout")
        self._group = group
        self._stdin, self._stdout = group.stdin, group.stdout
        self._stderr = OutputTail(group.stderr, _STDERR_TAIL_BYTES)
        self._sent_too_long_a_line = False
        self._second = self._bytes = 0

    @classmethod
    async def start(cls, launch: Launch) -> "AgentProcess":
        """Start the agent in a process group of its own. Raises OSError."""
        return cls(await start_speaking(launch.argv, launch.environment, launch.cwd, line_bytes=MAX_LINE_BYTES))

    @property
    def stderr_tail(self) -> str:
        return self._stderr.data.decode(errors="replace").strip()

    async def write(self, line: str) -> None:
        """Write one line. Raises ConnectionError when the agent reads no more."""
        self._stdin.write(line.encode())
        await self._stdin.drain()

    async def read_object(self) -> dict[str, Any] | None:
        """Return the next JSON object; None at the end of the output or at a line longer than MAX_LINE_BYTES."""
        while True:
            # Lets other tasks take what was read so far, also when more lines are in the buffer.
            await asyncio.sleep(0)
            try:
                line = await self._stdout.readline()
            except ValueError:
                self._sent_too_long_a_line = True
                return None
            except ConnectionError:
                return None
            if not line:
                return None
            await self._keep_pace(len(line))
            # A long line is parsed in a thread: the event loop serves all turns.
            short = len(line) <= UNCOUNTED_BYTES
            value = parse_object(line) if short else await asyncio.to_thread(parse_object, line)
            if value is not None:
                return value
            _log.debug("agent-output-skipped", pid=self._group.pid, line=line[:200].decode(errors="replace"))

    async def _keep_pace(self, size: int) -> None:
        """Wait for the next second where this one has brought too much."""
        now = asyncio.get_running_loop().time()
        if int(now) > self._second:
            self._second, self._bytes = int(now), 0
        self._bytes += size
        if self._bytes > MAX_BYTES_PER_SECOND:
            await asyncio.sleep(self._second + 1 - now)

    def close_stdin(self) -> None:
        """Ask the agent to exit."""
        self._stdin.close()

    async def why_output_ended(self) -> str:
        """Return the reason why there is no more output, as the predicate of a sentence."""
        if self._sent_too_long_a_line:
            return reasons.too_long_message(MAX_LINE_BYTES)
        if await self._group.exits_within(_EXIT_SECONDS):
            # Another process can hold the pipe open.
            await self._stderr.finish()
        return reasons.program_ended(self._group.status)

    async def end(self) -> None:
        """End the whole process group. The agent gets time to exit by itself: it may be writing its session."""
        self._stdin.close()
        try:
            await self._group.exits_within(_EXIT_SECONDS)
        finally:
            await self._group.end()
        await self._stderr.finish()
