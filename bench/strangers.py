"""Strangers who flood the doors of the web part: `python -m bench.strangers KIND PORT SECRET`, until it is killed.

A process of their own, so that the measuring one is not slowed down by its own load.
"""

import asyncio
import contextlib
import itertools
import sys
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import Awaitable, Callable
from uuid import uuid4

from bot.inbox.delivery import sign

KINDS = ("unsigned", "forged", "slow", "connections", "large")
LARGE_BYTES = 24 << 20
"""GitHub's largest payloads have 25 MB."""
CONNECTIONS = 400
"""Fewer than the web part takes: with more it answers 503, which is its limit and no measure of its speed."""


def head(signature: str | None, length: int) -> bytes:
    """Return the head of a delivery of an event that the bot uses."""
    signed = f"X-Hub-Signature-256: {signature}\r\n" if signature else ""
    return (
        f"POST /webhooks/github HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\nX-GitHub-Event: issue_comment\r\nX-GitHub-Delivery: {uuid4()}\r\n{signed}\r\n"
    ).encode()


def large_body() -> bytes:
    """Return a payload that takes long to parse: many small values."""
    start, end = b'{"action":"created","filler":[', b"0]}"
    return start + b'{"a":[1]},' * ((LARGE_BYTES - len(start) - len(end)) // 10) + end


async def main(kind: str, port: int, secret: bytes) -> None:
    wrong = "sha256=" + "0" * 64
    body = large_body() if kind in ("large", "forged") else b"x" * (1 << 20)
    stranger: Callable[[Reader, Writer], Awaitable[None]]
    match kind:
        case "unsigned":
            count, stranger = 8, lambda reader, writer: _post(reader, writer, head(None, len(body)) + body)
        case "forged":
            count, stranger = 4, lambda reader, writer: _post(reader, writer, head(wrong, len(body)) + body)
        case "slow":
            count, stranger = CONNECTIONS // 2, lambda _, writer: _trickle(writer, head(wrong, 1 << 20))
        case "connections":
            count, stranger = CONNECTIONS, lambda _, writer: _trickle(writer, b"POST /webhooks/github HTTP/1.1\r\nX: ")
        case "large":
            signature = sign(body, secret)
            count, stranger = 2, lambda reader, writer: _post(reader, writer, head(signature, len(body)) + body)
        case _:
            raise SystemExit(f"{kind} is none of {', '.join(KINDS)}")
    await asyncio.gather(*(_for_ever(port, stranger) for _ in range(count)))


async def _for_ever(port: int, stranger: Callable[[Reader, Writer], Awaitable[None]]) -> None:
    while True:
        with contextlib.suppress(OSError, EOFError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                await stranger(reader, writer)
            finally:
                writer.close()
        await asyncio.sleep(0.01)


async def _post(reader: Reader, writer: Writer, request: bytes) -> None:
    writer.write(request)
    await reader.readuntil(b"\r\n\r\n")  # it may come before the whole request was sent


async def _trickle(writer: Writer, begin: bytes) -> None:
    writer.write(begin)
    for _ in itertools.count():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.5)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()))
