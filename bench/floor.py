"""The floor of a durable acknowledgement: `python -m bench.floor DATABASE_URL PORT` only inserts what it is sent.

Bare ASGI on the product's own server and event loop. It checks nothing, reads nothing and keeps each body, compressed
as the product does, in one table; what arrives together is committed together.
"""

import asyncio
import sys
from typing import Any

import asyncpg
import lz4.block
import uvicorn
import uvloop

WRITERS, GROUP_SIZE = 2, 16
TABLE = "create table floor (guid text primary key, body bytea); alter table floor alter body set storage external"
INSERT = "insert into floor select * from unnest($1::text[], $2::bytea[])"

Waiting = tuple[str, bytes, "asyncio.Future[None]"]


async def _write(pool: asyncpg.Pool, queue: "asyncio.Queue[Waiting]") -> None:
    while True:
        group = [await queue.get()]
        while len(group) < GROUP_SIZE and not queue.empty():
            group.append(queue.get_nowait())
        await pool.execute(INSERT, [guid for guid, _, _ in group], [lz4.block.compress(body) for _, body, _ in group])
        for _, _, stored in group:
            stored.set_result(None)


async def serve(dsn: str, port: int) -> None:
    """Serve until the process is asked to end."""
    async with asyncpg.create_pool(dsn, server_settings={"synchronous_commit": "on"}) as pool:
        queue: asyncio.Queue[Waiting] = asyncio.Queue()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            guid = next(value for name, value in scope["headers"] if name == b"x-github-delivery").decode()
            body, more = b"", True
            while more:
                message = await receive()
                body, more = body + message["body"], message["more_body"]
            stored = asyncio.get_running_loop().create_future()
            queue.put_nowait((guid, body, stored))
            await stored
            await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

        writers = [asyncio.create_task(_write(pool, queue)) for _ in range(WRITERS)]
        config = uvicorn.Config(
            app, port=port, lifespan="off", access_log=False, log_level="warning", ws="none", interface="asgi3"
        )
        await uvicorn.Server(config).serve()
        for writer in writers:
            writer.cancel()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2])))
