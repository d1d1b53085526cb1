"""Starts of `threadtree` without the second or two that its imports take.

One process per test run has imported the bot, without running any of it. Each start is a fork of it that becomes an
ordinary process: a session, environment, directory and streams of its own, and a real exit status.
A forked `serve` forks its two processes too. `Deployment.interpreters` starts new interpreters instead.
"""

import asyncio
import atexit
import functools
import gc
import importlib
import os
import runpy
import signal
import socket
import ssl
import subprocess
import sys
import traceback
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx
import orjson

from bot.cli import processes
from tests.support.patience import PATIENCE_SECONDS
from tests.support.postgres import remember_types

IMPORTED = (
    *("bot.cli.processes", "bot.cli.worktrees", "bot.cli.calls", "bot.cli.main", "bot.serve.process"),
    *("bot.serve.web", "tests.chaos.program", "bot.postgres.embedded", "bot.agents.acp", "httpcore"),
    *("procrastinate.builtin_tasks", "_strptime", "uvloop", "uvicorn.loops.auto"),
    *("uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.auto"),
)
"""What the commands import when they run, and uvicorn when it starts."""
LARGEST_REQUEST_BYTES = 64 << 10


class Started(Protocol):
    """A started process, as `asyncio.subprocess.Process` is one."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    @property
    def stdout(self) -> asyncio.StreamReader | None: ...
    @property
    def stderr(self) -> asyncio.StreamReader | None: ...
    async def wait(self) -> int: ...


@dataclass(slots=True)
class Forked:
    """A process that the server has forked."""

    pid: int
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader
    _ending: "asyncio.Task[int]"

    @property
    def returncode(self) -> int | None:
        return self._ending.result() if self._ending.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._ending)


async def new_interpreter(arguments: Sequence[str], environment: Mapping[str, str], cwd: Path) -> Started:
    """Start Python with these arguments, this environment and nothing else."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments),
        env=environment,
        cwd=cwd,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        start_new_session=True,
    )


async def fork(arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, stdin: bytes = b"") -> Forked:
    """Do the same as `new_interpreter`, with all modules imported already; `stdin` is all that it can read."""
    request = orjson.dumps(
        {"arguments": arguments, "environment": dict(environment), "cwd": str(cwd), "stdin": stdin.decode("latin-1")}
    )
    mine, theirs = socket.socketpair()
    (out, their_out), (err, their_err) = os.pipe(), os.pipe()
    try:
        socket.send_fds(_server(), [request], [theirs.fileno(), their_out, their_err])
    finally:
        theirs.close()
        os.close(their_out)
        os.close(their_err)
    stdout, stderr = await _reader(out), await _reader(err)
    mine.setblocking(False)
    status, writer = await asyncio.open_connection(sock=mine)
    async with asyncio.timeout(PATIENCE_SECONDS):
        told = await status.readline()
    assert told, "the fork server has ended; its stderr says why"

    async def ending() -> int:
        try:
            return int(await status.readline())
        finally:
            writer.close()

    return Forked(int(told), stdout, stderr, asyncio.create_task(ending()))


async def _reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(descriptor, "rb", 0))
    return reader


@functools.cache
def _server() -> socket.socket:
    """Start the server of this test process; return the socket for requests. It ends when the socket closes."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            env={"PATH": os.environ["PATH"]},
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )

    def end() -> None:
        mine.close()
        server.wait()

    atexit.register(end)
    return mine


def next_start(requests: socket.socket) -> list[str] | None:
    """Fork for each request. Return Python's arguments in the new process, and None in the server at its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, LARGEST_REQUEST_BYTES, 3)
        if not data:
            return None
        if os.fork() == 0:
            requests.close()
            request = orjson.loads(data)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if _fork_and_report(*descriptors):
                os._exit(0)
            _become(request["environment"], request["cwd"], request["stdin"], *descriptors)
            return list(request["arguments"])
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_and_report(report: int, out: int, err: int) -> bool:
    """Fork; in the parent, which returns True, report the new process and wait for its end."""
    pid = os.fork()
    if pid == 0:
        return False
    os.close(out)
    os.close(err)
    os.write(report, b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    os.write(report, b"%d\n" % os.waitstatus_to_exitcode(status))
    return True


def _become(environment: Mapping[str, str], cwd: str, stdin: str, report: int, out: int, err: int) -> None:
    """Make the process what a new one would be."""
    os.setsid()
    if stdin:
        readable, writable = os.pipe()
        os.write(writable, stdin.encode("latin-1"))
        os.close(writable)
        os.dup2(readable, 0)
        os.close(readable)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for descriptor in (report, out, err):
        os.close(descriptor)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)


def main() -> None:
    """Serve requests; in a new process run what was asked for."""
    for name in IMPORTED:
        importlib.import_module(name)
    remember_types()
    ssl.create_default_context = functools.cache(ssl.create_default_context)  # type: ignore[assignment]
    processes._start = fork_of_serve  # type: ignore[assignment]
    httpx.create_ssl_context(trust_env=False)
    arguments = next_start(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        _run(arguments)


def _run(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        runpy.run_path(arguments[0], run_name="__main__")


class ForkOfServe:
    """One of the two processes of a forked `serve`, with what it uses of `asyncio.subprocess.Process`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._descriptor = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._note_end)

    async def wait(self) -> int:
        return await asyncio.shield(self._status)

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self._status.done():
            raise ProcessLookupError
        os.kill(self.pid, number)

    def _note_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._status.set_result(os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]))


async def fork_of_serve(command: str, *options: str) -> ForkOfServe:
    """Start `web` or `worker` as `serve` does, by a fork of it. The new process does not return from here."""
    serve = os.getpid()
    if pid := os.fork():
        return ForkOfServe(pid)
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        _run(["-m", "bot", command, f"--end-with={serve}", *options])
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - it must not go on as `serve`
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
