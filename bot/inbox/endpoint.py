"""`POST /webhooks/github`: a delivery is checked, stored and acknowledged. The decide step finds out what it means."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import Protocol, TypeVar, assert_never

import orjson
import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from bot import counters
from bot.github.payloads import is_used_event
from bot.inbox.delivery import delivery_of, is_signed
from bot.inbox.inbox import Outcome, Unavailable
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

# The header that names the event is not signed: others have one count together.
COUNTED_TOO = ("ping", "installation", "installation_repositories")
_EVENT = re.compile(r"[a-z0-9_]{1,64}")
_GUID = re.compile(r"[A-Za-z0-9-]{1,64}")
_SIGNATURE = re.compile(r"sha256=[0-9a-fA-F]{64}")
_LENGTH = re.compile(r"[0-9]{1,20}")
_log = structlog.get_logger()

T = TypeVar("T")


class Inbox(Protocol):
    """Where deliveries are stored (bot/receive/inbox.py): under `names` the bot's names, joined by commas."""

    @property
    def names(self) -> str: ...
    async def store(self, delivery: NewDelivery) -> Outcome: ...


class _Answer(Exception):  # noqa: N818 - most are no errors
    """An answer. It is raised where the rest of the request is not looked at."""

    def __init__(self, status: int, content: Mapping[str, str], headers: Mapping[str, str] = MappingProxyType({})):
        self.status = status
        self.content = content
        self.headers = dict(headers)
        super().__init__(status)


class Receiver:
    """The endpoint for deliveries signed with one of `secrets` by the GitHub server with the host `platform`.

    `others` is the app for all other paths. A body must arrive within `body_seconds`; the bodies of all requests may
    hold `bytes_in_flight` at once. Without `bare_commands` a text that mentions nobody is for others.
    """

    def __init__(
        self,
        inbox: Inbox,
        secrets: Sequence[bytes],
        platform: str,
        others: ASGIApp,
        *,
        body_seconds: float = BODY_SECONDS,
        bytes_in_flight: int = BYTES_IN_FLIGHT,
        bare_commands: bool = True,
    ) -> None:
        self._inbox = inbox
        self._secrets = tuple(secrets)
        self._platform = platform
        self._others = others
        self._bare_commands = bare_commands
        self._body_seconds = body_seconds
        self._warned_at: dict[str, int] = {}
        self._free_bytes = bytes_in_flight
        self._reserved_bytes = bytes_in_flight // 4

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._others(scope, receive, send)
            return
        began = perf_counter()
        answer = await self._receive(scope, receive)
        if answer.status == 202:
            counters.ACKNOWLEDGED_AFTER.observe(perf_counter() - began)
            counters.LAST_DELIVERY.set_to_current_time()
        else:
            counters.DELIVERIES_REFUSED.labels(answer.status).inc()
        content = orjson.dumps(answer.content)
        headers = {"content-type": "application/json", "content-length": str(len(content)), **answer.headers}
        told = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": told})
        await send({"type": "http.response.body", "body": content})

    async def _receive(self, scope: Scope, receive: Receive) -> _Answer:
        """Return 202 only when the delivery is committed; else what is wrong with it, or 503 to ask for it again."""
        if scope["method"] != "POST":
            return _refusal(405, "Deliveries are sent with POST.", {"allow": "POST"})
        # Of a name that occurs twice, the first counts.
        headers = {name: value.decode("latin-1") for name, value in reversed(scope["headers"])}
        event, guid = headers.get(b"x-github-event", ""), headers.get(b"x-github-delivery", "")
        if not _EVENT.fullmatch(event):
            return _refusal(400, "The header X-GitHub-Event is missing or malformed.")
        if not _GUID.fullmatch(guid):
            return _refusal(400, "The header X-GitHub-Delivery is missing or malformed.")
        # Before the body: anybody can send one.
        signature = headers.get(b"x-hub-signature-256", "")
        if not _SIGNATURE.fullmatch(signature):
            self._warn("delivery-unsigned", guid)
            return _refusal(401, "The header X-Hub-Signature-256 is missing or malformed.")
        chunks: list[bytes] = []
        try:
            # The chunks count as in flight until the answer is known.
            body = await self._read_body(receive, headers.get(b"content-length", ""), guid, chunks)
            if not await _judge(len(body), partial(is_signed, body, signature, self._secrets)):
                self._warn("delivery-wrong-signature", guid)
                return _refusal(401, "The signature does not match the body and the webhook secret.")
            media_type = headers.get(b"content-type", "").partition(";")[0].strip().lower()
            is_form = media_type == "application/x-www-form-urlencoded"
            answer = await self._store(guid, event, body, is_form=is_form)
            named = event if is_used_event(event) or event in COUNTED_TOO else "other"
            counters.DELIVERIES_RECEIVED.labels(named, answer.content.get("status", answer.status)).inc()
            return answer
        except _Answer as answer:
            return answer
        finally:
            self._free_bytes += sum(map(len, chunks))

    async def _read_body(self, receive: Receive, declared: str, guid: str, chunks: list[bytes]) -> bytes:
        """Return the body, whose parts are added to `chunks` as they arrive. Raises _Answer."""
        size, more = 0, True
        if _LENGTH.fullmatch(declared) and int(declared) > LARGEST_BODY_BYTES:
            raise _too_large()
        try:
            async with asyncio.timeout(self._body_seconds):
                # Bytes are counted as they arrive: a Content-Length may be absent or wrong.
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        _log.info("delivery-client-gone", delivery=guid)
                        raise _refusal(400, "The client is gone.")
                    chunk, more = message.get("body", b""), message.get("more_body", False)
                    size += len(chunk)
                    if size > LARGEST_BODY_BYTES:
                        raise _too_large()
                    if len(chunk) > self._free_bytes - (self._reserved_bytes if size > USUAL_BODY_BYTES else 0):
                        self._warn("deliveries-in-flight-over-limit", guid)
                        raise _try_again("too many deliveries arrive at once")
                    self._free_bytes -= len(chunk)
                    chunks.append(chunk)
        except TimeoutError:
            self._warn("delivery-body-too-slow", guid)
            why = f"The body did not arrive within {self._body_seconds:g} seconds."
            raise _refusal(408, why) from None
        return b"".join(chunks)

    def _warn(self, event: str, guid: str) -> None:
        """Log that a request was refused, once a second for each kind: a stranger must not fill the log."""
        second = int(asyncio.get_running_loop().time())
        if self._warned_at.get(event) != second:
            self._warned_at[event] = second
            _log.warning(event, delivery=guid)

    async def _store(self, guid: str, event: str, body: bytes, *, is_form: bool) -> _Answer:
        while True:
            names = self._inbox.names
            how = {"is_form": is_form, "bare_commands": self._bare_commands}
            delivery = await _judge(len(body), partial(delivery_of, guid, event, body, self._platform, names, **how))
            match await self._inbox.store(delivery):
                case "renamed":
                    continue  # the bot's names have changed since: they may be in the text
                case Unavailable(why):
                    return _try_again(why)
                case "stored" | "duplicate" if delivery.state == "dead":
                    _log.warning("delivery-dead", delivery=guid, error=delivery.error)
                    return _refusal(400, delivery.error or "The body could not be parsed.")
                case "stored":
                    return _accepted(guid, "ignored" if delivery.state == "ignored" else "accepted")
                case "duplicate":
                    return _accepted(guid, "duplicate")
                case never:
                    assert_never(never)


async def _judge(size: int, look: Callable[[], T]) -> T:
    """Return what `look` finds in a body of this size; at a large one it looks in a thread, while others arrive."""
    return await asyncio.to_thread(look) if size > USUAL_BODY_BYTES else look()


def _accepted(guid: str, status: str) -> _Answer:
    return _Answer(202, {"status": status, "delivery": guid})


def _too_large() -> _Answer:
    return _refusal(413, f"The body is larger than {LARGEST_BODY_BYTES} bytes.")


def _try_again(why: str) -> _Answer:
    return _refusal(503, f"The delivery was not stored: {why}.", {"retry-after": str(RETRY_AFTER_SECONDS)})


def _refusal(status: int, why: str, headers: Mapping[str, str] = MappingProxyType({})) -> _Answer:
    return _Answer(status, {"error": why}, headers)
