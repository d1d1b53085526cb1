"""The web process: it listens for GitHub's webhooks and for probes of its health."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette

from bot.compose.database import CannotStartError
from bot.health import database_probe, health_routes
from bot.receive.endpoint import Receiver
from bot.receive.inbox import Inbox
from bot.settings import Settings
from bot.store.database import Pool


async def run_web(settings: Settings, pool: Pool, stopping: asyncio.Event, on_listening: Callable[[str], None]) -> None:
    """Serve HTTP until `stopping`; call `on_listening` with the address. Raises CannotStartError."""
    async with Inbox(pool) as inbox:
        receiver = Receiver(inbox, settings.webhook_secrets, settings.platform)
        app = Starlette(routes=[receiver.route(), *health_routes(database_probe(pool))])
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=10,
        )
        server = _Server(config)
        serving = asyncio.create_task(server.serve([_listener(settings)]))
        stop = asyncio.create_task(stopping.wait())
        try:
            while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.01)
            if server.started:
                host, port = server.servers[0].sockets[0].getsockname()[:2]
                on_listening(f"http://{f'[{host}]' if ':' in host else host}:{port}")
            await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            server.should_exit = True
            await serving


class _Server(uvicorn.Server):
    """A server that leaves signals to the process, which has more to stop than a server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listener(settings: Settings) -> socket.socket:
    """The socket to listen on. uvicorn's own would end the process when the port is taken."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        raise CannotStartError(
            f"HOST {settings.host} and PORT {settings.port} cannot be listened on ({error.strerror}); "
            "choose others, or stop the program that listens there."
        ) from error
    # asyncio sets this only on sockets it made itself; without it every answer waits for the peer's delayed ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
