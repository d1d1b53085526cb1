"""The parts of HTTP/1.1 that both proxies share: one request a connection, a bounded head, plain refusals."""

import asyncio
import json
from collections.abc import Iterable
from http import HTTPStatus

import h11

MAX_HEAD_BYTES = 32 * 1024
HEAD_SECONDS = 30.0

# https://www.rfc-editor.org/rfc/rfc9110#section-7.6.1, with what older clients send to proxies.
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"upgrade",
    }
)
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})

Header = tuple[bytes, bytes]


class BadRequestError(Exception):
    """The request cannot be answered; `status` is the HTTP status for the client."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


async def read_head(reader: asyncio.StreamReader, connection: h11.Connection) -> h11.Request:
    """Read the head of the request and feed it to the connection. The body stays in the reader.

    The reader's limit bounds the head. Raises BadRequestError, and ConnectionError when the client disconnects.
    """
    try:
        async with asyncio.timeout(HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        raise ConnectionAbortedError("the client disconnected before its request was complete") from error
    except TimeoutError as error:
        raise BadRequestError(408, "the request did not arrive in time") from error
    except asyncio.LimitOverrunError as error:
        raise BadRequestError(431, "the request's head is too large") from error
    connection.receive_data(head)
    try:
        request = connection.next_event()
    except h11.RemoteProtocolError as error:
        raise BadRequestError(error.error_status_hint, str(error)) from error
    if not isinstance(request, h11.Request):
        raise BadRequestError(400, "not a request")
    return request


def end_to_end(headers: Iterable[Header]) -> list[Header]:
    """Return the headers that a proxy passes on, names in lower case. Those that frame the body always are."""
    headers = list(headers)
    named = {name.strip().lower() for key, value in headers if key == b"connection" for name in value.split(b",")}
    dropped = (_HOP_BY_HOP | named) - _FRAMING
    return [(name, value) for name, value in headers if name not in dropped]


def refusal(status: int, why: str) -> bytes:
    """Return a whole response that ends the connection, in the shape of errors of model APIs."""
    body = json.dumps({"error": {"type": "proxy_error", "message": why}}).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
