"""`threadtree serve`: the commands `web` and `worker` as two child processes that end together."""

import asyncio
import ctypes
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from contextlib import AsyncExitStack, suppress

import structlog

from bot.cli.running import database_url, stop_signals
from bot.settings import Settings
from bot.tasks import unless_stopped

# Beside a web process, a busy worker and its agents leave the processor to acknowledgements.
WORKER_NICENESS = 5
# The web process gives its last requests 10 s, then its connections to the database as much.
WEB_END_SECONDS = 25.0
_ASKED_TO_END = (signal.SIGTERM, signal.SIGINT)
# https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
_PR_SET_PDEATHSIG = 1
_log = structlog.get_logger()


async def serve(settings: Settings, *worker_options: str) -> int:
    """Bring the schema up to date and run both until a stop signal, or until one of them ends; return the status."""
    from bot.store.migrate import migrate

    stopping = stop_signals()
    async with AsyncExitStack() as stack:
        dsn = await unless_stopped(stopping, stack.enter_async_context(database_url(settings)))
        if dsn is None or await unless_stopped(stopping, migrate(dsn)) is None:
            return 0
        web, worker = await _start("web"), await _start("worker", *worker_options)
        with suppress(ProcessLookupError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, worker.pid, WORKER_NICENESS)
        ends = [asyncio.create_task(waiting) for waiting in (web.wait(), worker.wait(), stopping.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        # Deliveries are taken until the worker has ended.
        statuses = [await _end("worker", worker), await _end("web", web, WEB_END_SECONDS)]
        return next(filter(None, statuses), 0)


def end_with(parent: int | None) -> None:
    """Let SIGTERM end this process when the process that started it, `parent`, ends in any way."""
    if parent is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit(0)


async def _start(command: str, *options: str) -> Process:
    # `-P`: no module is imported from the working directory, which holds `.env` and perhaps anything.
    argv = (sys.executable, "-P", "-m", "bot", command, f"--end-with={os.getpid()}", *options)
    return await asyncio.create_subprocess_exec(*argv, stdin=DEVNULL)


async def _end(name: str, process: Process, seconds: float | None = None) -> int:
    """End a process with SIGTERM, after this time with SIGKILL; return its exit status, 0 for a stop signal."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(seconds):
            status = await process.wait()
    except TimeoutError:
        process.kill()
        status = await process.wait()
    if status >= 0:
        return status
    if -status in _ASKED_TO_END:
        return 0
    _log.warning("process-killed", name=name, signal=signal.Signals(-status).name)
    return 128 - status
