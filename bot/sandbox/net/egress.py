"""The egress proxy of a turn: the only connection of its network namespace to the internet.

It takes CONNECT and absolute-form HTTP on a unix socket, looks a name up once, checks all its addresses and connects to
one of them, so that a later answer of the name server cannot change the target. Where HTTPS_PROXY is the way out, it
asks that for the name, by CONNECT alone: then that proxy decides where the name leads. Paths, headers and bodies are
neither kept nor logged.
"""

import asyncio
import errno
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from urllib.parse import SplitResult

import h11
import structlog

from bot.sandbox.net import rules, sockets
from bot.sandbox.net.rules import Destination, IPAddress, NotReachableError
from bot.sandbox.net.sockets import BadRequestError, Streams
from bot.sandbox.outbound import Outbound, proxy_headers

CONNECT_SECONDS = 30.0
CONNECT_ONE_SECONDS = 10.0
IDLE_SECONDS = 600.0
# Separate threads: a slow name server must not block the rest of the bot.
RESOLVER_THREADS = 4

_ABSOLUTE = re.compile(r"http://(?P<authority>[^/?#@]+)(?P<path>/[^#]*)?(?P<query>\?[^#]*)?", re.IGNORECASE)

_log = structlog.get_logger()

Resolve = Callable[[str], Awaitable[Sequence[IPAddress]]]
Connect = Callable[[IPAddress, int], Awaitable[Streams]]
Local = Mapping[Destination, Path]
"""Sockets of the turn's own services, by the target that a client names."""


@dataclass(frozen=True, slots=True)
class Outside:
    """What sandboxes have outside: the way there, and the hosts that ALLOWED_HOSTS opens to all of them.

    `further` are what the repository opens to its own: ports of public hosts, where the internet is open.
    """

    outbound: Outbound = field(default_factory=Outbound)
    allowed: frozenset[Destination] = frozenset()
    further: frozenset[Destination] = frozenset()


@dataclass(frozen=True, slots=True)
class Dialer:
    """A resolver and a connector. Both raise OSError on failure; `connect` resolves no names."""

    resolve: Resolve
    connect: Connect


@asynccontextmanager
async def system_dialer() -> AsyncIterator[Dialer]:
    """Yield the system's resolver, in threads of its own, and plain TCP."""
    threads = ThreadPoolExecutor(RESOLVER_THREADS, thread_name_prefix="egress-resolver")
    try:
        yield Dialer(partial(_resolve, threads), lambda address, port: asyncio.open_connection(str(address), port))
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


async def _resolve(threads: ThreadPoolExecutor, name: str) -> Sequence[IPAddress]:
    lookup = partial(socket.getaddrinfo, name, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    found = await asyncio.get_running_loop().run_in_executor(threads, lookup)
    return list(dict.fromkeys(ip_address(address[0]) for *_, address in found))


@asynccontextmanager
async def egress_proxy(
    listener: socket.socket,
    dialer: Dialer,
    local: Local,
    outside: Outside | None = None,
    *,
    only_allowed: bool = False,
    tunnels: Sequence[tuple[socket.socket, Destination]] = (),
) -> AsyncIterator[None]:
    """Serve the proxy on the listener. It also connects to `local`, for clients that ignore NO_PROXY.

    With `only_allowed` nothing but these and ALLOWED_HOSTS is reached. Each listener of `tunnels` leads to one host.
    """
    proxy = _Egress(dialer, local, outside or Outside(), only_allowed)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(sockets.serving(listener, proxy.answer))
        for tunnel, target in tunnels:
            await stack.enter_async_context(sockets.serving(tunnel, partial(proxy.tunnel, target)))
        yield
    _log.info("egress-closed", opened=proxy.opened, refused=proxy.refused)


@dataclass(slots=True)
class _Egress:
    dialer: Dialer
    local: Local
    outside: Outside
    only_allowed: bool
    opened: int = 0
    refused: int = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            target, onward = _asked(await sockets.read_head(reader, h11.Connection(h11.SERVER)))
            far_reader, far_writer = await self._open(target)
        except NotReachableError as error:
            self.refused += 1
            _log.debug("egress-refused", why=str(error))
            writer.write(sockets.refusal(403, f"Not reachable from here: {error}."))
            return
        except BadRequestError as error:
            writer.write(sockets.refusal(error.status, str(error)))
            return
        self.opened += 1
        if onward:
            far_writer.write(onward)
        else:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        async with sockets.closed_after(far_reader, far_writer):
            await _splice((reader, writer), (far_reader, far_writer))

    async def tunnel(self, target: Destination, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect a client that speaks any protocol to the target."""
        try:
            far = await self._open(target)
        except (NotReachableError, BadRequestError) as error:
            _log.warning("allowed-host-away", host=str(target.host), port=target.port, why=str(error))
            return
        self.opened += 1
        async with sockets.closed_after(*far):
            await _splice((reader, writer), far)

    async def _open(self, target: Destination) -> Streams:
        """Return a connection to the target by a checked address. Raises BadRequestError, NotReachableError."""
        if target in self.local:
            return await sockets.connect_private(self.local[target])
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                addresses = await self._checked(target)
                # A proxy is for the internet: what is private is near.
                is_near = target in self.outside.allowed and not all(map(rules.is_public, addresses))
                proxy = None if is_near else self.outside.outbound.proxy_for(str(target.host), target.port)
                return await (_through(proxy, target) if proxy else self._first(addresses, target.port))
        except TimeoutError as error:
            raise BadRequestError(502, "The host did not answer in time.") from error

    async def _checked(self, target: Destination) -> Sequence[IPAddress]:
        """Return the addresses of a target that may be reached, none where no name server knows it.

        Raises NotReachableError.
        """
        host, is_allowed = target.host, target in self.outside.allowed
        if self.only_allowed and not is_allowed:
            raise NotReachableError(f"{host}:{target.port} is not in ALLOWED_HOSTS")
        if not is_allowed:
            if isinstance(host, str):
                rules.require_public_name(host)
            if target not in self.outside.further:
                rules.require_web_port(target.port)
        elif not isinstance(host, str):
            return [host]
        addresses: Sequence[IPAddress] = []
        if isinstance(host, str):
            with suppress(OSError, UnicodeError):
                addresses = await self.dialer.resolve(host)
        else:
            addresses = [host]
        own = {address for address in addresses if is_of_this_host(address)}
        for address in addresses:
            (rules.require_within_reach if is_allowed else rules.require_reachable)(address, own)
        return addresses

    async def _first(self, addresses: Sequence[IPAddress], port: int) -> Streams:
        for address in addresses:
            try:
                async with asyncio.timeout(CONNECT_ONE_SECONDS):
                    return await self.dialer.connect(address, port)
            except OSError:
                _log.debug("egress-unreachable", version=address.version)
        raise BadRequestError(502, "The host could not be connected to." if addresses else "The name has no address.")


def _asked(request: h11.Request) -> tuple[Destination, bytes]:
    """Return the requested target and the head to send there, empty for a tunnel.

    Raises BadRequestError, NotReachableError.
    """
    text = request.target.decode("ascii")
    if request.method == b"CONNECT":
        return rules.parse_target(text), b""
    parts = _ABSOLUTE.fullmatch(text)
    if parts is None:
        raise BadRequestError(400, "This is a proxy: ask with CONNECT, or for a whole http:// address.")
    headers = [header for header in sockets.end_to_end(request.headers) if header[0] != b"host"]
    onward = h11.Request(
        method=request.method,
        target=(parts["path"] or "/") + (parts["query"] or ""),
        # One request a connection, so that every request is checked.
        headers=[(b"host", parts["authority"].encode()), *headers, (b"connection", b"close")],
    )
    head = h11.Connection(h11.CLIENT).send(onward)
    return rules.parse_target(parts["authority"], default_port=80), head or b""


async def _through(proxy: SplitResult, target: Destination) -> Streams:
    """Return a connection to the target through the proxy of HTTPS_PROXY. Raises BadRequestError."""
    authority = (
        f"[{target.host}]:{target.port}" if isinstance(target.host, IPv6Address) else f"{target.host}:{target.port}"
    )
    connection = h11.Connection(h11.CLIENT)
    headers = [("Host", authority), *proxy_headers(proxy).items()]
    try:
        reader, writer = await asyncio.open_connection(proxy.hostname, proxy.port)
    except OSError as error:
        raise BadRequestError(502, "The proxy of this network could not be connected to.") from error
    try:
        writer.write(connection.send(h11.Request(method="CONNECT", target=authority, headers=headers)) or b"")
        connection.receive_data(await reader.readuntil(b"\r\n\r\n"))
        answer = connection.next_event()
        if not isinstance(answer, h11.Response) or not 200 <= answer.status_code < 300:
            status = answer.status_code if isinstance(answer, h11.Response) else "nothing"
            _log.warning("proxy-refused-a-sandbox", status=status)
            raise BadRequestError(502, f"The proxy of this network answers {status}.")
    except BaseException as error:
        writer.transport.abort()
        if isinstance(error, OSError | EOFError | asyncio.LimitOverrunError | h11.RemoteProtocolError):
            raise BadRequestError(502, "The proxy of this network does not answer as a proxy.") from error
        raise
    return reader, writer


def is_of_this_host(address: IPAddress) -> bool:
    """Return whether the address is this host's: only then can a socket be bound to it.

    With `ip_nonlocal_bind` every address counts as this host's, and nothing can be reached.
    """
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        # No socket can have this address here, perhaps because the host has no IPv6.
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL):
            return False
        raise
    return True


async def _splice(near: Streams, far: Streams) -> None:
    """Carry bytes both ways, each way until its own end, and end both when nothing moves for IDLE_SECONDS."""
    loop = asyncio.get_running_loop()

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter, clock: asyncio.Timeout) -> None:
        while data := await source.read(sockets.CHUNK_BYTES):
            if not clock.expired():
                clock.reschedule(loop.time() + IDLE_SECONDS)
            sink.write(data)
            await sink.drain()
        sink.write_eof()

    async with asyncio.timeout(IDLE_SECONDS) as clock, asyncio.TaskGroup() as both:
        both.create_task(carry(near[0], far[1], clock))
        both.create_task(carry(far[0], near[1], clock))
