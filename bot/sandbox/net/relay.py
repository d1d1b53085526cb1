"""Forward ports of the loopback in an agent's network namespace to unix sockets, and run the agent.

    python -I -S relay.py --forward=127.0.0.1:PORT=SOCKET …  -- COMMAND…

The relay forks a forwarder and then *becomes* the command, which keeps its stdio, signals and exit status. The
forwarder ends with the command. It runs by path in the sandbox, so it uses only the standard library and imports
little. The namespace's loopback must be up (bubblewrap's --unshare-net does that).
"""

import os
import select
import signal
import socket
import sys
import threading

CHUNK_BYTES = 64 * 1024
# Each has two open files and two threads here. More connections wait in the listener's queue.
MAX_CONNECTIONS = 256
# The memory limit of an agent counts the stacks of threads.
STACK_BYTES = 256 * 1024

CANNOT_RUN_STATUS = 126
NOT_FOUND_STATUS = 127


def forward(listeners: dict[socket.socket, str], pidfd: int) -> None:
    """Forward connections until the process of the pidfd is gone."""
    threading.stack_size(STACK_BYTES)
    free = threading.Semaphore(MAX_CONNECTIONS)
    for listener, path in listeners.items():
        threading.Thread(target=accept, args=(listener, path, free), daemon=True).start()
    select.select([pidfd], [], [])


def accept(listener: socket.socket, path: str, free: threading.Semaphore) -> None:
    """Connect the clients of the listener, for ever."""
    while True:
        free.acquire()
        try:
            near, _ = listener.accept()
        except OSError:  # the client has disconnected
            free.release()
            continue
        try:
            threading.Thread(target=connect, args=(near, path, free), daemon=True).start()
        except RuntimeError:  # no more threads are allowed
            near.close()
            free.release()


def connect(near: socket.socket, path: str, free: threading.Semaphore) -> None:
    """Carry bytes between a client and the unix socket at the path until both have ended."""
    try:
        with near, socket.socket(socket.AF_UNIX) as far:
            folder, name = os.path.split(path)
            directory = os.open(folder, os.O_PATH)
            try:
                # A socket address holds 107 bytes, fewer than many a path.
                far.connect(f"/proc/self/fd/{directory}/{name}")
            finally:
                os.close(directory)
            back = threading.Thread(target=carry, args=(far, near), daemon=True)
            back.start()
            carry(near, far)
            back.join()
    except (OSError, RuntimeError):  # the host is gone, or no more threads are allowed
        return
    finally:
        free.release()


def carry(source: socket.socket, sink: socket.socket) -> None:
    """Pass bytes on until either side ends or fails, then end the sink. A sink that takes no more can still be read."""
    try:
        while data := source.recv(CHUNK_BYTES):
            sink.sendall(data)
    except OSError:  # a reset is an end like any other
        pass
    try:
        # Also after a reset: otherwise the other side would wait for ever, and hold one of the connections.
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


def listen(forwards: list[str]) -> dict[socket.socket, str]:
    """Return listeners with the unix socket of each, from `127.0.0.1:PORT=SOCKET`."""
    listeners = {}
    for forward in forwards:
        address, _, path = forward.partition("=")
        host, _, port = address.rpartition(":")
        listener = socket.create_server((host, int(port)), backlog=MAX_CONNECTIONS)
        # Else each second piece of a streamed answer waits for the client's delayed ACK, 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
            forward(listeners, pidfd)
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
