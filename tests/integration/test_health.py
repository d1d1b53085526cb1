"""`/healthz` and `/readyz` while the database and the workers stop and start."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import httpx
from starlette.applications import Starlette

from bot.serve.health import HEARTBEAT_MAX_AGE_SECONDS, health_routes
from bot.store.database import Pool, database
from tests.support.patience import PATIENCE_SECONDS
from tests.support.postgres import execute

Get = Callable[[str], Awaitable[tuple[int, Any]]]
HEARTBEAT = """
insert into nodes (id, heartbeat_at) values ('here', now() - make_interval(secs => $1))
on conflict (id) do update set heartbeat_at = excluded.heartbeat_at
"""
ENGINE_HEARTBEAT = "insert into procrastinate_workers (last_heartbeat) values (now() - make_interval(secs => $1))"
READY = (200, {"status": "ready"})


@asynccontextmanager
async def health_of(database_url: str, *, timeout_seconds: float = 30) -> AsyncIterator[Get]:
    async with database(database_url, size=2) as pool, health_on(pool, timeout_seconds) as get:
        yield get


@asynccontextmanager
async def health_on(pool: Pool, timeout_seconds: float = 30) -> AsyncIterator[Get]:
    app = Starlette(routes=health_routes(pool, timeout_seconds=timeout_seconds))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://bot.test") as client:

        async def get(path: str) -> tuple[int, Any]:
            response = await client.get(path)
            return response.status_code, response.json()

        yield get


async def beat(database_url: str, age_seconds: float, *, of_engine: float | None = None) -> None:
    """Give a sign of life of a node, and of the job engine's workers, at its age or another one."""
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(HEARTBEAT, age_seconds)
        await connection.execute("delete from procrastinate_workers")
        await connection.execute(ENGINE_HEARTBEAT, age_seconds if of_engine is None else of_engine)
    finally:
        await connection.close()


async def test_ready_is_a_current_schema_and_a_living_worker(database_url: str) -> None:
    async with health_of(database_url) as get:
        status, body = await get("/readyz")
        assert (status, body["status"]) == (503, "unready")
        assert "no worker" in body["reason"]
        await beat(database_url, age_seconds=0)
        assert await get("/readyz") == READY
        too_old = HEARTBEAT_MAX_AGE_SECONDS + 1
        for node, engine in ((too_old, too_old), (too_old, 0), (0, too_old)):
            await beat(database_url, node, of_engine=engine)
            assert (await get("/readyz"))[0] == 503
        assert await get("/healthz") == (200, {"status": "ok"})


async def test_an_old_schema_is_not_ready_and_says_what_to_run(empty_database_url: str) -> None:
    async with health_of(empty_database_url) as get:
        status, body = await get("/readyz")
        assert status == 503
        assert "run `threadtree migrate`" in body["reason"]


async def test_a_process_stays_ready_when_a_newer_version_migrates_the_schema(database_url: str) -> None:
    await beat(database_url, age_seconds=0)
    await execute(database_url, "insert into schema_migrations (name, sha256) values ('999_later', '')")
    async with health_of(database_url) as get:
        assert await get("/readyz") == READY


class Proxy:
    """A proxy before Postgres that can stop forwarding, like a firewall that lost its state."""

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._connected, "127.0.0.1")
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_unix_connection(self._socket_path)
        for source, sink in ((reader, back_writer), (back_reader, writer)):
            task = asyncio.create_task(self._pass_on(source, sink))
            self._tasks.add(task)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while chunk := await source.read(65536):
                await self.flowing.wait()
                sink.write(chunk)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()


async def test_a_hanging_database_is_reported_in_time_and_recovers(database_url: str) -> None:
    await beat(database_url, age_seconds=0)
    parts = urlsplit(database_url)
    directory = parse_qs(parts.query)["host"][0]
    proxy = Proxy(f"{directory}/.s.PGSQL.{parse_qs(parts.query).get('port', ['5432'])[0]}")
    async with proxy.listening() as port:
        user = parts.username or "postgres"
        through_proxy = f"postgresql://{user}@127.0.0.1:{port}{parts.path}?sslmode=disable"
        async with health_of(through_proxy, timeout_seconds=0.2) as get:
            proxy.flowing.clear()
            for _ in range(3):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    status, body = await get("/readyz")
                assert status == 503
                assert "the database does not answer" in body["reason"]
                assert await get("/healthz") == (200, {"status": "ok"})
            proxy.flowing.set()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while await get("/readyz") != READY:  # each waits for the probe, so this does not spin
                    pass


async def test_a_database_replaced_by_an_empty_one_is_not_ready(database_url: str, postgres_server: str) -> None:
    await beat(database_url, age_seconds=0)
    async with health_of(database_url) as get:
        assert await get("/readyz") == READY
        name = urlsplit(database_url).path.removeprefix("/")
        await execute(postgres_server, f"drop database {name} with (force)", f"create database {name}")
        assert (await get("/readyz"))[0] == 503


async def test_the_probe_gives_its_connection_back(database_url: str) -> None:
    async with database(database_url, size=1) as pool, health_on(pool) as get:
        for _ in range(3):
            assert "no worker" in (await get("/readyz"))[1]["reason"]
        assert isinstance(pool, asyncpg.Pool)
        assert pool.get_idle_size() == 1
