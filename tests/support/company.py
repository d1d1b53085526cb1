"""A company's network in tests: a forward proxy, a certificate authority of its own, and https in front of a server.

The names end in `.corp.example`, which no name server knows: whoever reaches them did so through the proxy.
"""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

import trustme

from tests.support.network import site

GITHUB = "github.corp.example"
MODELS = "models.corp.example"
FILES = "files.corp.example"
PASSWORD = "p@ss/word-of-the-proxy"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True)
class ForwardProxy:
    """A proxy that takes CONNECT alone. `hosts` are what it reaches: `name:port` and a port of the loopback."""

    hosts: dict[str, int] = field(default_factory=dict)
    credentials: str | None = None
    port: int = 0
    asked: list[str] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, target, *_ = (head := await reader.readuntil(b"\r\n\r\n")).decode().split(" ")
        lines = [line.strip() for line in head.decode().splitlines()]
        self.asked.append(target)
        wanted = base64.b64encode((self.credentials or "").encode()).decode()
        given = next((line.split()[-1] for line in lines if line.lower().startswith("proxy-authorization:")), "")
        status = 407 if self.credentials and given != wanted else 403 if target not in self.hosts else 200
        if status != 200 or method != "CONNECT":
            self.refused.append(status)
            asks = b'Proxy-Authenticate: Basic realm="corp"\r\n' if status == 407 else b""
            writer.write(b"HTTP/1.1 %d No\r\n%sContent-Length: 0\r\nConnection: close\r\n\r\n" % (status, asks))
            return
        far = await asyncio.open_connection("127.0.0.1", self.hosts[target])
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await carried((reader, writer), far)


async def carried(near: Streams, far: Streams) -> None:
    """Carry bytes both ways until one side ends."""

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()

    with closing(far[1]):
        ways = [asyncio.create_task(carry(near[0], far[1])), asyncio.create_task(carry(far[0], near[1]))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)


@dataclass(slots=True)
class Company:
    """The proxy, and the authority's certificate."""

    proxy: ForwardProxy
    authority: trustme.CA
    authority_file: Path

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a bot in this network."""
        user = f"robot:{PASSWORD.replace('@', '%40').replace('/', '%2F')}@" if self.proxy.credentials else ""
        return {
            "HTTPS_PROXY": f"http://{user}127.0.0.1:{self.proxy.port}",
            "SSL_CERT_FILE": str(self.authority_file),
        }

    @asynccontextmanager
    async def https(self, name: str, port_of_backend: Callable[[], int]) -> AsyncIterator[None]:
        """Serve the backend, which speaks http on the loopback, at https://NAME behind the proxy."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await carried((reader, writer), await asyncio.open_connection("127.0.0.1", port_of_backend()))

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert(name).configure_cert(context)
        async with site(answer, context) as front:
            self.proxy.hosts[f"{name}:443"] = front.port
            yield


@asynccontextmanager
async def company(directory: Path, *, credentials: str | None = f"robot:{PASSWORD}") -> AsyncIterator[Company]:
    """Run the proxy of a company; without credentials it asks for none."""
    authority = trustme.CA(organization_name="Corp")
    file = directory / "corp-ca.pem"
    authority.cert_pem.write_to_path(file)
    proxy = ForwardProxy(credentials=credentials)
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] = proxy.answer
    async with site(handle) as there:
        proxy.port = there.port
        yield Company(proxy, authority, file)
