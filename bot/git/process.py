"""Feed a git command and read its output until its end."""

import asyncio
import contextlib
from collections.abc import Callable

from bot.process import ProcessGroup

_CHUNK_BYTES = 1 << 16


async def listen(
    process: ProcessGroup,
    given: bytes | None,
    timeout_seconds: float,
    on_stderr: Callable[[bytes], None] | None,
) -> tuple[bytes, bytes]:
    """Return what the command writes to stdout and stderr until its end. `on_stderr` gets each piece of stderr.

    With `on_stderr` the limit is on silence: a command that reports progress may take as long as it needs. Raises
    TimeoutError. After an exception the whole process group has ended.
    """
    try:
        return await _listen(process, given, timeout_seconds, on_stderr)
    except BaseException:
        await asyncio.shield(process.end())
        raise


async def _listen(
    process: ProcessGroup, given: bytes | None, timeout_seconds: float, on_stderr: Callable[[bytes], None] | None
) -> tuple[bytes, bytes]:
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
