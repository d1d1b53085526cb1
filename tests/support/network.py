"""The outside of a turn's network in tests: names and addresses that lead to the test's own servers.

Connections go to 127.0.0.1 only: an address without a server of the test is only recorded.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address

from bot.sandbox.net.egress import Dialer
from bot.sandbox.net.rules import IPAddress
from bot.sandbox.net.sockets import Streams
from bot.sandbox.net.turn_network import Network
from tests.support.patience import PATIENCE_SECONDS

PUBLIC = "93.184.215.14"
ALSO_PUBLIC = "93.184.215.15"

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class Site:
    """A server of the test on the host's loopback."""

    port: int
    visits: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def site(handle: Handler, context: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[Site]:
    """Serve connections with `handle`, over TLS with a `context`; at the end they are closed."""
    tasks: set[asyncio.Task[None]] = set()
    thread_ref = Site(0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        except (ConnectionError, EOFError):  # the client left
            pass
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        thread_ref.visits += 1
        task = asyncio.create_task(answer(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async with await asyncio.start_server(accept, host, 0, ssl=context) as server:
        thread_ref.port = server.sockets[0].getsockname()[1]
        try:
            yield thread_ref
        finally:
            server.close()
            left = list(tasks)
            for task in left:
                task.cancel()
            for failure in await asyncio.gather(*left, return_exceptions=True):
                if isinstance(failure, Exception):
                    raise failure


@dataclass(slots=True)
class SimulatedInternet:
    """The answers for names (one after another, the last one repeats), and the servers of addresses."""

    names: dict[str, list[list[str]]] = field(default_factory=dict)
    sites: dict[tuple[str, int], Site] = field(default_factory=dict)
    lookups: list[str] = field(default_factory=list)
    connections: list[tuple[str, int]] = field(default_factory=list)

    @property
    def dialer(self) -> Dialer:
        return Dialer(self._resolve, self._connect)

    async def _resolve(self, name: str) -> Sequence[IPAddress]:
        self.lookups.append(name)
        if name not in self.names:
            raise OSError("no such name")
        answers = self.names[name]
        return [ip_address(address) for address in (answers.pop(0) if len(answers) > 1 else answers[0])]

    async def _connect(self, address: IPAddress, port: int) -> Streams:
        self.connections.append((str(address), port))
        if (str(address), port) not in self.sites:
            raise ConnectionRefusedError("nothing of the test is there")
        return await asyncio.open_connection("127.0.0.1", self.sites[str(address), port].port)


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended."""

    status: int
    out: bytes
    err: str


async def run(argv: Sequence[str], environment: Mapping[str, str], stdin: bytes = b"") -> Ended:
    """Run the command to its end."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", **environment},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(stdin), PATIENCE_SECONDS)
    assert process.returncode is not None
    return Ended(process.returncode, out, err.decode())


def sandboxed(network: Network, argv: Sequence[str]) -> tuple[str, ...]:
    """Return the argv in a plain sandbox: the system's programs, and the network's needs."""
    shown = [option for bind in network.binds for option in ("--ro-bind", str(bind.path), str(bind.at or bind.path))]
    return (
        *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"),
        *("--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
        *(() if network.own_namespace else ("--share-net",)),
        *shown,
        *((*network.wrapper, "--", *argv) if network.wrapper else argv),
    )


def status_of(answer: bytes) -> int:
    """Return the status of an HTTP response."""
    return int(answer.split(b" ", 2)[1])
