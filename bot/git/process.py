"""A process of git's: started, listened to, and ended with everything it started."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine

# git removes its lock files on SIGTERM; a SIGKILL leaves them behind.
TERMINATION_GRACE_SECONDS = 2.0
_CHUNK_BYTES = 1 << 16


async def start(starting: Coroutine[None, None, asyncio.subprocess.Process]) -> asyncio.subprocess.Process:
    """asyncio waits for ever when cancelled while it connects a process's pipes, so it never is."""
    task = asyncio.ensure_future(starting)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if task.exception() is None:
            await asyncio.shield(end(task.result()))
        raise


async def listen(
    process: asyncio.subprocess.Process,
    given: bytes | None,
    timeout_seconds: float,
    on_stderr: Callable[[bytes], None] | None,
) -> tuple[bytes, bytes]:
    """Waits for the process's end; what it wrote to stdout and stderr. `on_stderr` is given each piece of stderr.

    With `on_stderr` the limit is on silence: whoever tells how far it is may take as long as it needs. Raises
    TimeoutError.
    """
    loop = asyncio.get_running_loop()
    pieces: list[bytes] = []
    async with asyncio.timeout(timeout_seconds) as limit:

        async def hear(stream: asyncio.StreamReader) -> None:
            while piece := await stream.read(_CHUNK_BYTES):
                pieces.append(piece)
                if on_stderr is not None:
                    limit.reschedule(loop.time() + timeout_seconds)
                    on_stderr(piece)

        if process.stderr is None:
            raise ValueError("a process whose stderr is not a pipe")
        stdout, _, _ = await asyncio.gather(_read(process.stdout), hear(process.stderr), _feed(process.stdin, given))
        await process.wait()
    return stdout, b"".join(pieces)


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    return b"" if stream is None else await stream.read()


async def _feed(stream: asyncio.StreamWriter | None, given: bytes | None) -> None:
    if stream is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # git may end before it has read all
        stream.write(given or b"")
        await stream.drain()
    stream.close()


async def end(process: asyncio.subprocess.Process) -> None:
    """Both signals always: the first may end git alone. Waits are bounded: who left the group may keep the pipes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal_group(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TERMINATION_GRACE_SECONDS):
                await process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
