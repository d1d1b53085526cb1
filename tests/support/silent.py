"""A way to Postgres on which open connections can fall silent: nothing passes any more, and nothing is closed.

So does a fail-over behind a load balancer or a NAT that forgets. New connections work at once.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

from bot.tasks import concurrently


class Way:
    """The proxy's address as a DSN, and its connections."""

    def __init__(self, dsn: str) -> None:
        known = conninfo_to_dict(dsn)
        self._socket = Path(str(known["host"])) / f".s.PGSQL.{known.get('port', 5432)}"
        self._silent = asyncio.Event()
        self._user, self._database, self._passfile = known["user"], known["dbname"], known.get("passfile", "")
        self.dsn = ""

    def listens(self, port: int) -> None:
        """Take the port into the address."""
        passfile = f"?passfile={quote(str(self._passfile))}" if self._passfile else ""
        self.dsn = f"postgresql://{self._user}@127.0.0.1:{port}/{self._database}{passfile}"

    def fall_silent(self) -> None:
        """Let all connections that are open fall silent. The server sees them closed."""
        self._silent.set()
        self._silent = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what both sides say until one of them ends, or this falls silent: then until the client ends."""
        silent = self._silent
        async with _closing(writer):
            try:
                from_server, to_server = await asyncio.open_unix_connection(str(self._socket))
            except OSError:
                return  # the server is away
            async with (
                _closing(to_server),
                concurrently(_pump(reader, to_server)) as asking,
                concurrently(_pump(from_server, writer)) as answering,
                concurrently(silent.wait()) as falling,
            ):
                await asyncio.wait({asking, answering, falling}, return_when=asyncio.FIRST_COMPLETED)
            if silent.is_set():
                with suppress(OSError):
                    while await reader.read(1 << 16):
                        pass


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()


@asynccontextmanager
async def _closing(stream: asyncio.StreamWriter) -> AsyncIterator[None]:
    try:
        yield
    finally:
        stream.close()
        with suppress(OSError):
            await stream.wait_closed()


@asynccontextmanager
async def silent_way(dsn: str) -> AsyncIterator[Way]:
    """Yield a way to the Postgres that listens on a Unix socket."""
    way, serving = Way(dsn), set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(way.serve(reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        way.listens(server.sockets[0].getsockname()[1])
        try:
            yield way
        finally:
            for task in tuple(serving):
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
