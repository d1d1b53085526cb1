"""A child process in a group of its own: started, read within bounds, and ended with everything it started."""

import asyncio
import os
import signal
import socket
from asyncio.subprocess import DEVNULL, PIPE, SubprocessStreamProtocol
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

# git removes its lock files on SIGTERM, agents write their sessions. A SIGKILL leaves both as they are.
TERMINATION_SECONDS = 2.0
# A process that left the group can hold the pipes open for ever.
LAST_OUTPUT_SECONDS = 2.0
_CHUNK_BYTES = 1 << 16


class _Protocol(SubprocessStreamProtocol):
    """A protocol that reports the exit of the process separately from the end of its pipes."""

    def __init__(self, line_bytes: int) -> None:
        super().__init__(limit=line_bytes, loop=asyncio.get_running_loop())
        self.exited = asyncio.Event()
        self.released = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.released.set()


class ProcessGroup:
    """A child that leads its own process group.

    `stdin`, `stdout` and `stderr` are None unless they are pipes or, of a child that is `spoken_to`, sockets.
    """

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: _Protocol) -> None:
        process = asyncio.subprocess.Process(transport, protocol, asyncio.get_running_loop())
        self.pid = process.pid
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr
        self._transport = transport
        self._protocol = protocol
        self._hears: asyncio.StreamWriter | None = None

    def spoken_to(self, stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader, hears: asyncio.StreamWriter) -> None:
        """Speak with the child over these sockets; `hears` is the writing side of that of `stdout`."""
        self.stdin, self.stdout, self._hears = stdin, stdout, hears

    @property
    def status(self) -> int | None:
        """The exit status, negative for the signal that ended the process; None while it runs."""
        return self._transport.get_returncode()

    async def wait(self) -> None:
        """Wait for the exit of the process. Its pipes may still be open."""
        await self._protocol.exited.wait()

    async def exits_within(self, seconds: float) -> bool:
        """Wait at most `seconds` for the exit, and return whether the process has exited."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wait()
        return self._protocol.exited.is_set()

    async def end(self) -> None:
        """End the whole group and close the pipes."""
        await self.terminate()
        await self.close()

    async def terminate(self) -> None:
        """End the whole group: SIGTERM, a short wait, SIGKILL. What was written last is still in the pipes.

        Both signals are always sent: the process may have exited already, and its own children not.
        """
        try:
            self._signal(signal.SIGTERM)
            await self.exits_within(TERMINATION_SECONDS)
        finally:
            self._signal(signal.SIGKILL)
        await self.exits_within(TERMINATION_SECONDS)

    async def close(self) -> None:
        """Close the pipes, also those that a process outside the group still holds."""
        if self.stdin is not None and self.stdin.transport.get_write_buffer_size():
            # Closing would wait until the buffer is read.
            self.stdin.transport.abort()
        if self.stdin is not None:
            self.stdin.close()
        if self._hears is not None:
            self._hears.close()
        self._transport.close()
        if self.status is not None:
            await self._protocol.released.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


async def start(
    argv: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path,
    *,
    stdin: int = DEVNULL,
    stdout: int = PIPE,
    stderr: int = PIPE,
    line_bytes: int = _CHUNK_BYTES,
    inherited: Sequence[int] = (),
) -> ProcessGroup:
    """Start a child in a session, and so a process group, of its own. Raises OSError.

    A cancellation during the start leaves no process behind. `line_bytes` is the longest line that `readline` takes.
    The child has the `inherited` descriptors under the same numbers.
    """
    starting = asyncio.ensure_future(
        asyncio.get_running_loop().subprocess_exec(
            lambda: _Protocol(line_bytes),
            *argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=dict(environment),
            cwd=cwd,
            start_new_session=True,
            pass_fds=inherited,
        )
    )
    try:
        # The start itself is never cancelled: asyncio would then wait for ever while it connects the pipes.
        return ProcessGroup(*await asyncio.shield(starting))
    except asyncio.CancelledError:
        await asyncio.shield(_end_once_started(starting))
        raise


async def start_speaking(
    argv: Sequence[str], environment: Mapping[str, str], cwd: Path, *, line_bytes: int
) -> ProcessGroup:
    """Start a child like `start`, that is spoken with over stdin and stdout. Raises OSError.

    These are sockets: what the child runs as the same user could open a pipe in /proc/PID/fd, and speak in its place.
    """
    (to_child, childs_in), (from_child, childs_out) = socket.socketpair(), socket.socketpair()
    # Each carries one direction, as a pipe does.
    to_child.shutdown(socket.SHUT_RD)
    from_child.shutdown(socket.SHUT_WR)
    opened: list[asyncio.StreamWriter] = []
    try:
        _, stdin = await asyncio.open_unix_connection(sock=to_child)
        opened.append(stdin)
        stdout, hears = await asyncio.open_unix_connection(sock=from_child, limit=line_bytes)
        opened.append(hears)
        group = await start(argv, environment, cwd, stdin=childs_in.fileno(), stdout=childs_out.fileno())
    except BaseException:
        for writer in opened:
            writer.transport.abort()
        to_child.close()
        from_child.close()
        raise
    finally:
        childs_in.close()
        childs_out.close()
    group.spoken_to(stdin, stdout, hears)
    return group


async def _end_once_started(starting: asyncio.Future[tuple[asyncio.SubprocessTransport, _Protocol]]) -> None:
    await asyncio.wait({starting})
    if starting.exception() is None:
        await ProcessGroup(*starting.result()).end()


class OutputTail:
    """A reader of a stream that keeps its last bytes."""

    def __init__(self, stream: asyncio.StreamReader | None, max_bytes: int) -> None:
        if stream is None:
            raise RuntimeError("the stream is not a pipe")
        self.data = b""
        self._max_bytes = max_bytes
        self._reading = asyncio.create_task(self._read(stream))

    async def finish(self, seconds: float = LAST_OUTPUT_SECONDS) -> None:
        """Wait at most `seconds` for the end of the stream."""
        await asyncio.wait({self._reading}, timeout=seconds)

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(_CHUNK_BYTES):
            self.data = (self.data + chunk)[-self._max_bytes :]
