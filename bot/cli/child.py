"""A part of a command in a child process: forked, told when to begin, and never left behind.

A socket joins the two. The kernel closes its end with the process, however that ends: then the other one knows.
"""

import asyncio
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

import typer

# The web part gives its last requests 10 s, then its connections to the database as much.
END_SECONDS = 25.0
_POLL_SECONDS = 0.02
_ASKED_TO_END = (signal.SIGTERM, signal.SIGINT)


class Child:
    """The child, as its parent sees it."""

    def __init__(self, name: str, pid: int, line: socket.socket) -> None:
        self.pid = pid
        self._name = name
        self._line = line
        self._status: int | None = None

    def begin(self, message: str) -> None:
        """Send the child its first and only message, which is one line."""
        with suppress(BrokenPipeError):  # it has ended already
            self._line.sendall(message.encode() + b"\n")

    def when_ended(self, act: Callable[[], None]) -> None:
        """Call `act` in this event loop once the child has ended."""
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(self._line)
            act()

        loop.add_reader(self._line, ended)

    def end(self) -> int:
        """Let the child end, and kill it if it does not; return its exit status, 0 where a signal asked it to end."""
        if self._status is None:
            with suppress(OSError):
                self._line.shutdown(socket.SHUT_WR)
            self._status = self._exit_status(time.monotonic() + END_SECONDS)
        return self._status

    def _exit_status(self, deadline: float) -> int:
        while not (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)
        status = os.waitstatus_to_exitcode(found[1])
        if status >= 0:
            return status
        if -status in _ASKED_TO_END:
            return 0
        typer.echo(f"threadtree: The {self._name} process was ended by {signal.Signals(-status).name}.", err=True)
        return 128 - status


class Parent:
    """The parent, as the child sees it."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    async def message(self, stopping: asyncio.Event) -> str | None:
        """Wait for the message; None if the parent has ended before, or `stopping` is set. The end sets `stopping`."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._line)  # dropped, it would be closed
        told = asyncio.get_running_loop().create_future()

        async def listen() -> None:
            told.set_result((await reader.readline()).decode().removesuffix("\n") or None)
            await reader.read()
            stopping.set()

        self._listening = asyncio.create_task(listen())
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait({told, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        message: str | None = told.result() if told.done() else None
        return message


def fork(name: str, work: Callable[[Parent], int]) -> Child:
    """Run `work` in a child; its result is the exit status. For a process that has no event loop and no threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return Child(name, pid, ours)
    status = 1
    try:
        ours.close()
        status = work(Parent(theirs))
    except BaseException:  # noqa: BLE001 -- the frames below are the parent's, which must not run twice
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
