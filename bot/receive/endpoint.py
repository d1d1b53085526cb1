"""`POST /webhooks/github`: a delivery is checked, stored and acknowledged. The decide step finds out what it means."""

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
RETRY_AFTER_SECONDS = 5

_EVENT = re.compile(r"[a-z0-9_]{1,64}")
_GUID = re.compile(r"[A-Za-z0-9-]{1,64}")
_log = structlog.get_logger()


class _TooLargeError(Exception):
    pass


class Receiver:
    """The endpoint for deliveries signed with one of `secrets` by the GitHub server with the host `platform`."""

    def __init__(self, inbox: Inbox, secrets: Sequence[bytes], platform: str) -> None:
        self._inbox = inbox
        self._secrets = tuple(secrets)
        self._platform = platform

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
        try:
            body = await _read_body(request)
        except _TooLargeError:
            return _refusal(413, f"The body is larger than {LARGEST_BODY_BYTES} bytes.")
        except ClientDisconnect:
            _log.info("delivery-client-gone", delivery=guid)
            return Response(status_code=400)  # the client is gone
        signature = request.headers.get("x-hub-signature-256")
        if not signature:
            _log.warning("delivery-unsigned", delivery=guid)
            return _refusal(401, "The header X-Hub-Signature-256 is missing.")
        if not is_signed(body, signature, self._secrets):
            _log.warning("delivery-wrong-signature", delivery=guid)
            return _refusal(401, "The signature does not match the body and the webhook secret.")
        return await self._store(delivery_of(guid, event, body, self._platform, is_form=_is_form(request)))

    async def _store(self, delivery: NewDelivery) -> Response:
        match await self._inbox.store(delivery):
            case Unavailable(why):
                headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
                return _refusal(503, f"The delivery was not stored: {why}.", headers)
            case "stored" | "duplicate" if delivery.state == "dead":
                _log.warning("delivery-dead", delivery=delivery.guid, error=delivery.error)
                return _refusal(400, delivery.error or "The body could not be parsed.")
            case "stored":
                return _accepted(delivery.guid, "ignored" if delivery.state == "ignored" else "accepted")
            case "duplicate":
                return _accepted(delivery.guid, "duplicate")
            case never:
                assert_never(never)


async def _read_body(request: Request) -> bytes:
    """Return the body. Its bytes are counted as they arrive: a Content-Length may be absent or wrong."""
    declared = request.headers.get("content-length", "")
    if re.fullmatch(r"[0-9]{1,20}", declared) and int(declared) > LARGEST_BODY_BYTES:
        raise _TooLargeError
    chunks = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > LARGEST_BODY_BYTES:
            raise _TooLargeError
        chunks.append(chunk)
    return b"".join(chunks)


def _is_form(request: Request) -> bool:
    media_type = request.headers.get("content-type", "").partition(";")[0]
    return media_type.strip().lower() == "application/x-www-form-urlencoded"


def _accepted(guid: str, status: str) -> Response:
    return JSONResponse({"status": status, "delivery": guid}, status_code=202)


def _refusal(status: int, why: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": why}, status_code=status, headers=headers)
