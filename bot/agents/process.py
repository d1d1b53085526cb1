"""An agent's process: one JSON message a line on its stdin and stdout, its last words, the end of its whole group."""

import asyncio
import json
import os
import signal
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from contextlib import suppress
from typing import Any

import structlog

from bot.agents.driver import Launch

# asyncio's default of 64 kB a line is less than one diff of a big file.
MAX_LINE_BYTES = 64 * 1024 * 1024
STDERR_TAIL_BYTES = 4096
END_SECONDS = 2.0

_log = structlog.get_logger()


def parse_message(line: bytes) -> dict[str, Any] | None:
    """A line as a JSON-RPC message, its texts storable; None for anything else that found its way to stdout."""
    try:
        message = _storable(json.loads(line))
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    error = message.get("error")
    well_formed = (
        isinstance(message.get("method"), str | None)
        and isinstance(message.get("id"), str | int | None)
        and (error is None or (isinstance(error, dict) and isinstance(error.get("code", 0), int)))
        and not message.keys().isdisjoint(("method", "id"))
    )
    return message if well_formed else None


def _storable(value: Any) -> Any:
    """The value without what JSON can carry and neither UTF-8 nor Postgres can: lone surrogates, NUL."""
    match value:
        case str():
            return value.encode(errors="replace").decode().replace("\0", "")
        case list():
            return [_storable(item) for item in value]
        case dict():
            return {_storable(key): _storable(item) for key, item in value.items()}
        case _:
            return value


class _StreamProtocol(SubprocessStreamProtocol):
    """Tells the process's exit from the end of its pipes, which a left-over grandchild can hold open."""

    def __init__(self) -> None:
        super().__init__(limit=MAX_LINE_BYTES, loop=asyncio.get_running_loop())
        self.exited = asyncio.Event()
        self.released = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.released.set()


class AgentProcess:
    """A running agent; the message transport of an `acp` connection (send, receive, close)."""

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: _StreamProtocol) -> None:
        process = asyncio.subprocess.Process(transport, protocol, asyncio.get_running_loop())
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise RuntimeError("an agent is started with three pipes")
        self._transport = transport
        self._protocol = protocol
        self._pid = process.pid
        self._stdin, self._stdout = process.stdin, process.stdout
        self._tail = b""
        self._stderr_reader = asyncio.create_task(self._keep_tail(process.stderr))

    @classmethod
    async def start(cls, launch: Launch) -> "AgentProcess":
        """Start it in a session, and so a process group, of its own. Raises OSError if that cannot be done."""
        transport, protocol = await asyncio.get_running_loop().subprocess_exec(
            _StreamProtocol,
            *launch.argv,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=dict(launch.environment),
            cwd=launch.cwd,
            start_new_session=True,
        )
        return cls(transport, protocol)

    @property
    def stderr_tail(self) -> str:
        return self._tail.decode(errors="replace").strip()

    async def send(self, message: dict[str, Any]) -> None:
        """Write one message. A request raises ConnectionError when the agent reads no more; an answer is dropped."""
        try:
            self._stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
            await self._stdin.drain()
        except ConnectionError:
            if "method" in message:
                raise
            _log.debug("agent-answer-undeliverable", pid=self._pid)

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end of the stream or at a line longer than MAX_LINE_BYTES."""
        while True:
            try:
                line = await self._stdout.readline()
            except (ValueError, ConnectionError) as error:
                _log.warning("agent-output-broken", pid=self._pid, error=str(error))
                return None
            if not line:
                return None
            message = parse_message(line)
            if message is not None:
                return message
            _log.debug("agent-output-skipped", pid=self._pid, line=line[:200].decode(errors="replace"))

    async def close(self) -> None:
        """Close the agent's stdin, which asks it to leave."""
        self._stdin.close()

    async def exit_status(self) -> int | None:
        """Its exit status (negative: the signal that ended it); None if it is alive a little later."""
        if not await self._outlives(END_SECONDS):
            # Its last words may still be in the pipe, which a grandchild can hold open.
            await asyncio.wait({self._stderr_reader}, timeout=END_SECONDS)
        return self._transport.get_returncode()

    async def end(self) -> None:
        """End the whole process group, kindly first (it may be writing its session), and give back what it held."""
        try:
            self._stdin.close()
            if await self._outlives(END_SECONDS):
                self._signal(signal.SIGTERM)
                await self._outlives(END_SECONDS)
        finally:
            # Also when the agent itself has gone: what it started may not have.
            self._signal(signal.SIGKILL)
        await self._protocol.exited.wait()
        if self._stdin.transport.get_write_buffer_size():
            # Its close would wait for a reader, and an escaped grandchild may hold that end.
            self._stdin.transport.abort()
        self._transport.close()
        await self._protocol.released.wait()
        await self._stderr_reader

    async def _outlives(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._protocol.exited.wait()
        return not self._protocol.exited.is_set()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._pid, number)

    async def _keep_tail(self, stderr: asyncio.StreamReader) -> None:
        while chunk := await stderr.read(65536):
            self._tail = (self._tail + chunk)[-STDERR_TAIL_BYTES:]
