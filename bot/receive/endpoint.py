"""`POST /webhooks/github`: a delivery is checked, stored and acknowledged. The decide step finds out what it means."""

import asyncio
import re
from collections.abc import Sequence
from typing import assert_never

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bot.receive.delivery import delivery_of, is_signed
from bot.receive.inbox import Inbox, Unavailable
from bot.store.deliveries import NewDelivery

PATH = "/webhooks/github"
# https://docs.github.com/en/webhooks/webhook-events-and-payloads#payload-cap
LARGEST_BODY_BYTES = 25 * 1024 * 1024
# GitHub gives up after 10 s: https://docs.github.com/en/webhooks/using-webhooks/best-practices-for-using-webhooks
BODY_SECONDS = 10.0
# What strangers can make this process hold. Large bodies leave a quarter of it to those of the usual size.
BYTES_IN_FLIGHT = 4 * LARGEST_BODY_BYTES
USUAL_BODY_BYTES = 256 * 1024
RETRY_AFTER_SECONDS = 5

_EVENT = re.compile(r"[a-z0-9_]{1,64}")
_GUID = re.compile(r"[A-Za-z0-9-]{1,64}")
_SIGNATURE = re.compile(r"sha256=[0-9a-fA-F]{64}")
_log = structlog.get_logger()


class _TooLargeError(Exception):
    pass


class _TooMuchInFlightError(Exception):
    pass


class Receiver:
    """The endpoint for deliveries signed with one of `secrets` by the GitHub server with the host `platform`.

    A body must arrive within `body_seconds`; the bodies of all requests may hold `bytes_in_flight` at once.
    """

    def __init__(
        self,
        inbox: Inbox,
        secrets: Sequence[bytes],
        platform: str,
        *,
        body_seconds: float = BODY_SECONDS,
        bytes_in_flight: int = BYTES_IN_FLIGHT,
    ) -> None:
        self._inbox = inbox
        self._secrets = tuple(secrets)
        self._platform = platform
        self._body_seconds = body_seconds
        self._free_bytes = bytes_in_flight
        self._reserved_bytes = bytes_in_flight // 4

    def route(self) -> Route:
        """Return the route; it answers 405 to other methods than POST."""
        return Route(PATH, self.receive, methods=["POST"])

    async def receive(self, request: Request) -> Response:
        """Answer 202 only when the delivery is committed; else what is wrong with it, or 503 to ask for it again."""
        event = request.headers.get("x-github-event", "")
        guid = request.headers.get("x-github-delivery", "")
        if not _EVENT.fullmatch(event):
            return _refusal(400, "The header X-GitHub-Event is missing or malformed.")
        if not _GUID.fullmatch(guid):
            return _refusal(400, "The header X-GitHub-Delivery is missing or malformed.")
        # Before the body: anybody can send one.
        signature = request.headers.get("x-hub-signature-256", "")
        if not _SIGNATURE.fullmatch(signature):
            _log.warning("delivery-unsigned", delivery=guid)
            return _refusal(401, "The header X-Hub-Signature-256 is missing or malformed.")
        chunks: list[bytes] = []
        try:
            return await self._receive(request, event, guid, signature, chunks)
        finally:
            self._free_bytes += sum(map(len, chunks))

    async def _receive(self, request: Request, event: str, guid: str, signature: str, chunks: list[bytes]) -> Response:
        """Read the body into `chunks`, which the caller counts as in flight until the answer is known."""
        try:
            async with asyncio.timeout(self._body_seconds):
                await self._read_body(request, chunks)
        except _TooLargeError:
            return _refusal(413, f"The body is larger than {LARGEST_BODY_BYTES} bytes.")
        except _TooMuchInFlightError:
            _log.warning("deliveries-in-flight-over-limit", delivery=guid)
            return _try_again("too many deliveries arrive at once")
        except TimeoutError:
            _log.warning("delivery-body-too-slow", delivery=guid)
            return _refusal(408, f"The body did not arrive within {self._body_seconds:g} seconds.")
        except ClientDisconnect:
            _log.info("delivery-client-gone", delivery=guid)
            return Response(status_code=400)  # the client is gone
        body = b"".join(chunks)
        if not is_signed(body, signature, self._secrets):
            _log.warning("delivery-wrong-signature", delivery=guid)
            return _refusal(401, "The signature does not match the body and the webhook secret.")
        return await self._store(delivery_of(guid, event, body, self._platform, is_form=_is_form(request)))

    async def _read_body(self, request: Request, chunks: list[bytes]) -> None:
        """Append the body to `chunks`. Bytes are counted as they arrive: a Content-Length may be absent or wrong."""
        declared = request.headers.get("content-length", "")
        if re.fullmatch(r"[0-9]{1,20}", declared) and int(declared) > LARGEST_BODY_BYTES:
            raise _TooLargeError
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > LARGEST_BODY_BYTES:
                raise _TooLargeError
            if len(chunk) > self._free_bytes - (self._reserved_bytes if size > USUAL_BODY_BYTES else 0):
                raise _TooMuchInFlightError
            self._free_bytes -= len(chunk)
            chunks.append(chunk)

    async def _store(self, delivery: NewDelivery) -> Response:
        match await self._inbox.store(delivery):
            case Unavailable(why):
                return _try_again(why)
            case "stored" | "duplicate" if delivery.state == "dead":
                _log.warning("delivery-dead", delivery=delivery.guid, error=delivery.error)
                return _refusal(400, delivery.error or "The body could not be parsed.")
            case "stored":
                return _accepted(delivery.guid, "ignored" if delivery.state == "ignored" else "accepted")
            case "duplicate":
                return _accepted(delivery.guid, "duplicate")
            case never:
                assert_never(never)


def _is_form(request: Request) -> bool:
    media_type = request.headers.get("content-type", "").partition(";")[0]
    return media_type.strip().lower() == "application/x-www-form-urlencoded"


def _accepted(guid: str, status: str) -> Response:
    return JSONResponse({"status": status, "delivery": guid}, status_code=202)


def _try_again(why: str) -> Response:
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    return _refusal(503, f"The delivery was not stored: {why}.", headers)


def _refusal(status: int, why: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": why}, status_code=status, headers=headers)
