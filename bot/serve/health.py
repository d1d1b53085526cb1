"""`GET /healthz` says that the process runs, `GET /readyz` whether the bot works: database, schema, a live worker."""

import asyncio
from contextlib import suppress
from typing import Final

import asyncpg
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from bot.inbox.recovery_rows import read_seconds_ago
from bot.node.node_rows import some_worker_is_alive
from bot.store.database import DATABASE_AWAY, Pool
from bot.store.migrate import MigrationError, NewerSchemaError, missing_migrations

HEARTBEAT_MAX_AGE_SECONDS: Final = 30
PROBE_TIMEOUT_SECONDS: Final = 3.0


def health_routes(pool: Pool, *, timeout_seconds: float = PROBE_TIMEOUT_SECONDS) -> list[Route]:
    """Return the two routes. `/readyz` answers 503 with the reason, after `timeout_seconds` at the latest."""
    running: asyncio.Task[str | float | None] | None = None

    async def healthz(_: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> JSONResponse:
        # A probe that hangs holds a connection and may ignore a cancellation: it continues in the background.
        nonlocal running
        if running is None or running.done():
            running = asyncio.create_task(_probe(pool, timeout_seconds))
        # Another request may begin the next probe meanwhile.
        probe = running
        finished, _pending = await asyncio.wait({probe}, timeout=timeout_seconds)
        found = probe.result() if finished else "the database does not answer"
        if isinstance(found, str):
            return JSONResponse({"status": "unready", "reason": found}, status_code=503)
        return JSONResponse({"status": "ready"} | ({} if found is None else {"log_read_seconds": round(found, 1)}))

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


async def _probe(pool: Pool, timeout_seconds: float) -> str | float | None:
    """Return why the bot cannot work now; if it can, how long ago GitHub's log of deliveries was read, if ever."""
    try:
        async with pool.acquire(timeout=timeout_seconds) as connection:
            # A schema that was migrated under this process: it goes on until it is restarted.
            with suppress(NewerSchemaError):
                if missing := await missing_migrations(connection):
                    return f"the schema is old, {missing[0]} is missing: run `threadtree migrate`"
            if not await some_worker_is_alive(connection, HEARTBEAT_MAX_AGE_SECONDS):
                return f"no worker gave a sign of life in the last {HEARTBEAT_MAX_AGE_SECONDS} seconds"
            return await read_seconds_ago(connection)
    except MigrationError as problem:
        return str(problem)
    except (asyncpg.PostgresError, *DATABASE_AWAY) as problem:
        return f"the database does not answer ({type(problem).__name__})"
