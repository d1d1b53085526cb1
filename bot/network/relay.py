"""Forward ports of the loopback in an agent's network namespace to unix sockets, and run the agent.

    python -I -S relay.py --forward=127.0.0.1:PORT=SOCKET …  -- COMMAND…

The relay forks a forwarder and then *becomes* the command, which keeps its stdio, signals and exit status. The
forwarder ends with the command. It runs by path in the cage, so it uses only the standard library and imports little.
The namespace's loopback must be up (bubblewrap's --unshare-net does that).
"""

import os
import select
import signal
import socket
import struct
import sys

CHUNK_BYTES = 64 * 1024
CONNECT_SECONDS = 10
# Each has two open files here. More connections wait in the listener's queue.
MAX_CONNECTIONS = 256

CANNOT_RUN_STATUS = 126
NOT_FOUND_STATUS = 127


class End:
    """One end of a connection; `pending` is what its peer has not taken yet, `ended` says that it sends no more."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.peer = self
        self.pending = b""
        self.ended = False
        self.watched = 0

    def interest(self) -> int:
        """Return the events to wait for: input if nothing is pending, room for what the peer has pending."""
        reading = select.EPOLLIN if not self.ended and not self.pending else 0
        return reading | (select.EPOLLOUT if self.peer.pending else 0)

    def read(self) -> None:
        """Read input and pass it on. Raises OSError when the connection is broken."""
        if self.ended or self.pending:
            return
        try:
            self.pending = self.connection.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        self.ended = not self.pending
        self.deliver()

    def deliver(self) -> None:
        """Write what is pending to the peer, then the end. A peer that takes no more can still be read."""
        try:
            if self.pending:
                self.pending = self.pending[self.peer.connection.send(self.pending) :]
            if self.ended and not self.pending:
                self.peer.connection.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return
        except OSError:
            self.pending, self.ended = b"", True

    def done(self) -> bool:
        return self.ended and not self.pending


class Forwarder:
    """Carries bytes between loopback connections and unix sockets until the process of the pidfd is gone."""

    def __init__(self, listeners: dict[socket.socket, str], pidfd: int) -> None:
        self.listeners = {listener.fileno(): (listener, path) for listener, path in listeners.items()}
        self.ends: dict[int, End] = {}
        self.pidfd = pidfd
        self.poll = select.epoll()
        self.poll.register(pidfd, select.EPOLLIN)
        for number in self.listeners:
            self.poll.register(number, select.EPOLLIN)
        self.accepting = True

    def run(self) -> None:
        while True:
            for number, _ in self.poll.poll():
                if number == self.pidfd:
                    return
                if number in self.listeners:
                    self.accept(*self.listeners[number])
                elif number in self.ends:  # an earlier event may have dropped it
                    self.move(self.ends[number])
            self.admit(len(self.ends) < 2 * MAX_CONNECTIONS)

    def accept(self, listener: socket.socket, path: str) -> None:
        try:
            near, _ = listener.accept()
        except OSError:  # the client has disconnected
            return
        far = socket.socket(socket.AF_UNIX)
        # Waits where the queue is full, unlike a connect with settimeout, which fails at once.
        far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", CONNECT_SECONDS, 0))
        try:
            folder, _, name = path.rpartition("/")
            os.chdir(folder)  # a socket address holds 107 bytes, fewer than many a path
            far.connect(name)
        except OSError:
            near.close()
            far.close()
            return
        one, other = End(near), End(far)
        one.peer, other.peer = other, one
        for end in (one, other):
            end.connection.setblocking(False)
            self.ends[end.connection.fileno()] = end
            self.watch(end)

    def move(self, end: End) -> None:
        """Write to the end what its peer has pending, and read from it."""
        try:
            if end.peer.pending:
                end.peer.deliver()
            end.read()
        except OSError:
            self.drop(end)
            return
        if end.done() and end.peer.done():
            self.drop(end)
            return
        self.watch(end)
        self.watch(end.peer)

    def watch(self, end: End) -> None:
        """Wait for the end's events. Without any it is not registered: a broken connection is always ready."""
        interest = end.interest()
        if interest and not end.watched:
            self.poll.register(end.connection, interest)
        elif interest:
            self.poll.modify(end.connection, interest)
        elif end.watched:
            self.poll.unregister(end.connection)
        end.watched = interest

    def drop(self, end: End) -> None:
        for dropped in (end, end.peer):
            del self.ends[dropped.connection.fileno()]
            dropped.connection.close()

    def admit(self, more: bool) -> None:
        if more != self.accepting:
            self.accepting = more
            for number in self.listeners:
                self.poll.modify(number, select.EPOLLIN if more else 0)


def listen(forwards: list[str]) -> dict[socket.socket, str]:
    """Return listeners with the unix socket of each, from `127.0.0.1:PORT=SOCKET`."""
    listeners = {}
    for forward in forwards:
        address, _, path = forward.partition("=")
        host, _, port = address.rpartition(":")
        listener = socket.create_server((host, int(port)), backlog=MAX_CONNECTIONS)
        listener.setblocking(False)
        listeners[listener] = path
    return listeners


def fork_forwarder(listeners: dict[socket.socket, str]) -> None:
    """Forward in a process that is no child of this one and ends with it."""
    pidfd = os.pidfd_open(os.getpid())
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    status = 1
    try:
        # Away from the signals that are for the command's process group, and from its stdio.
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        if os.fork() == 0:
            Forwarder(listeners, pidfd).run()
        status = 0
    finally:
        os._exit(status)


def environment() -> dict[bytes, bytes]:
    """Return the environment as it was passed: Python adds LC_CTYPE to its own if the locale is C."""
    with open("/proc/self/environ", "rb") as given:  # noqa: PTH123 - pathlib takes longer than all the rest
        pairs = (variable.partition(b"=") for variable in given.read().split(b"\0") if variable)
        return {name: value for name, _, value in pairs}


def main() -> None:
    forwards, command = [], sys.argv[1:]
    while command and command[0].startswith("--forward="):
        forwards.append(command.pop(0).removeprefix("--forward="))
    if len(command) < 2 or command[0] != "--":
        sys.exit("usage: relay.py --forward=HOST:PORT=SOCKET … -- COMMAND…")
    command = command[1:]
    try:
        fork_forwarder(listen(forwards))
    except OSError as error:
        sys.exit(f"relay: cannot forward: {error.strerror}")
    # Python ignores these two, and a program inherits ignored signals.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment())  # noqa: S606 - an argv, as everywhere
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(NOT_FOUND_STATUS if isinstance(error, FileNotFoundError) else CANNOT_RUN_STATUS)


if __name__ == "__main__":
    main()
