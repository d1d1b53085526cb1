"""The web process: it stores deliveries for a worker. It imports neither agents nor git.

GitHub's client it imports only where people sign in with GitHub.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from math import inf
from typing import TYPE_CHECKING

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from bot.care.measures_rows import save_counts
from bot.inbox.endpoint import Receiver
from bot.inbox.inbox import Inbox
from bot.node.transactions import persist
from bot.redaction import Redactor
from bot.serve.base import CannotStartError, api_context, require_current_schema
from bot.serve.health import health_routes
from bot.serve.metrics import metrics_route
from bot.settings import Settings
from bot.store import deliveries
from bot.store.database import Pool, database
from bot.tasks import concurrently

if TYPE_CHECKING:
    from bot.operator.api.calls import Calls
    from bot.operator.dashboard.access import Access

CONNECTIONS = 3
"""To Postgres, beside the one that hears of events: for groups of deliveries, calls and pages."""
# Above it clients get 503. Half of the usual limit of open files.
CLIENTS_AT_ONCE = 512
# Longer than clients keep an idle connection (httpx 5 s; nginx 60, cloudflared 90, Caddy 120): a server that closes it
# first can do so in the moment in which the next request is sent, and that request fails.
IDLE_SECONDS = 150
GRACE_SECONDS = 10
SAVE_COUNTS_SECONDS = 3.0
_WITHOUT_TOKEN = {"error": "There is no API here: ADMIN_TOKEN is not set."}
NO_API = Mount("/api", JSONResponse(_WITHOUT_TOKEN, 404, {"Cache-Control": "no-store"}))
_WHO_ANSWERS = "This is Threadtree. Its dashboard is here where ADMIN_TOKEN or GITHUB_CLIENT_ID is set.\n"
NO_DASHBOARD = Route("/", PlainTextResponse(_WHO_ANSWERS, 404, {"Cache-Control": "no-store"}))
_log = structlog.get_logger()


async def run_web(settings: Settings, dsn: str, redactor: Redactor, on_listening: Callable[[str], None]) -> None:
    """Serve HTTP until cancelled; call `on_listening` with the address. Raises CannotStartError.

    It needs no GitHub: what arrives while GitHub is away is stored.
    """
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(database(dsn, size=CONNECTIONS, patience_seconds=inf, redactor=redactor))
        await persist(pool, require_current_schema)
        if (name := settings.bot_name) is not None:
            await persist(pool, deliveries.change_name, name)
        listener = stack.enter_context(listener_of(settings))
        routes: list[BaseRoute] = [*health_routes(pool), metrics_route(pool)]
        news = None
        if settings.admin_token is None and settings.github_client_id is None:
            routes += [NO_API, NO_DASHBOARD]
        else:
            # Import late: these modules take memory.
            from bot.operator.api.app import api_routes
            from bot.operator.api.calls import Calls
            from bot.operator.api.events import News
            from bot.operator.dashboard.app import dashboard_routes
            from bot.operator.dashboard.login import Login

            calls, news = Calls(pool, api_context(settings)), News(dsn)
            token = settings.admin_token.get_secret_value() if settings.admin_token else None
            access = await stack.enter_async_context(_access(settings, redactor, calls))
            routes += [NO_API] if token is None else api_routes(calls, token, news)
            routes += dashboard_routes(calls, Login(calls.ctx.clock, token, access), news)
        others = Starlette(routes=routes)
        known = (Inbox(pool), settings.webhook_secrets, settings.platform, others)
        app = Receiver(*known, bare_commands=settings.bare_commands)
        stack.push_async_callback(save_counts, pool)
        served = await stack.enter_async_context(serving(app, listener, GRACE_SECONDS))
        if news is not None:
            stack.push_async_callback(news.close)
        await stack.enter_async_context(concurrently(_save_counts(pool)))
        host, port = listener.getsockname()[:2]
        on_listening(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        await asyncio.wait({served})


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, listener: socket.socket, grace_seconds: int) -> AsyncIterator[asyncio.Task[None]]:
    """Serve until the block ends, the last requests for `grace_seconds`; yield what serves."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        http="httptools",
        ws="none",
        interface="asgi3",
        proxy_headers=False,
        limit_concurrency=CLIENTS_AT_ONCE,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=grace_seconds,
    )
    server = Server(config)
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield task
    finally:
        server.should_exit = True
        await task
        # uvicorn closes nothing where it was told to exit while it started.
        for started in getattr(server, "servers", ()):
            started.close()


@contextlib.asynccontextmanager
async def _access(settings: Settings, redactor: Redactor, calls: "Calls") -> "AsyncIterator[Access | None]":
    """Yield what asks GitHub who may look, None where nobody signs in there."""
    if settings.github_client_id is None or settings.github_client_secret is None:
        yield None
        return
    from bot.github.client import GitHub
    from bot.github.people import SignIn
    from bot.operator.dashboard.access import Access, forget_unnamed
    from bot.serve.parts import Surroundings, open_client

    async with calls.connection() as connection:
        await forget_unnamed(connection, (*settings.dashboard_operators, *settings.dashboard_viewers))
    async with open_client(GitHub, settings, Surroundings(), redactor) as github:
        secret = settings.github_client_secret.get_secret_value()
        sign_in = SignIn(github, settings.github_server_url, settings.github_client_id, secret)
        yield Access(sign_in, calls, settings.dashboard_operators, settings.dashboard_viewers)


async def _save_counts(pool: Pool) -> None:
    while True:
        await asyncio.sleep(SAVE_COUNTS_SECONDS)
        try:
            await save_counts(pool)
        except Exception:  # noqa: BLE001 - a bug of the counts costs no delivery
            _log.exception("counts-not-saved")


class Server(uvicorn.Server):
    """A server that leaves signals to the process, which has more to stop than a server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listener_of(settings: Settings) -> socket.socket:
    """Return the socket to listen on. uvicorn's own would end the process when the port is taken."""
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
