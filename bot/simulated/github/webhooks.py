"""Webhooks as GitHub sends them: signed, with a timeout of ten seconds, never retried, all logged.

In order, unless several are sent at once.

Rules: https://docs.github.com/webhooks/using-webhooks/handling-failed-webhook-deliveries
"""

import asyncio
import hashlib
import hmac
import time
import urllib.parse
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import httpx
import orjson

from bot.simulated.github.changes import Changes
from bot.simulated.github.errors import not_found
from bot.simulated.github.faults import Faults

DELIVERY_TIMEOUT_SECONDS = 10.0
USER_AGENT = "GitHub-Hookshot/51dd0ec"

ContentType = Literal["json", "form"]


@dataclass(frozen=True, slots=True)
class Hook:
    """The address of deliveries and the secret that signs them; `app_id` if the webhook belongs to an app."""

    id: int
    url: str
    secret: str
    content_type: ContentType
    created_at: datetime
    app_id: int | None
    events: tuple[str, ...] = ("*",)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One attempt to deliver an event; a redelivery has the same GUID. The code is 0 without an answer."""

    id: int
    guid: str
    hook_id: int
    event: str
    action: str | None
    repository_id: int | None
    redelivery: bool
    delivered_at: datetime
    duration_seconds: float
    status: str
    status_code: int
    request_headers: Mapping[str, str]
    request_body: bytes
    response_headers: Mapping[str, str]
    response_body: str

    @property
    def payload(self) -> dict[str, Any]:
        """Return the event as it was sent."""
        payload: dict[str, Any] = orjson.loads(_json_part(self.request_headers, self.request_body))
        return payload

    @property
    def succeeded(self) -> bool:
        return 200 <= self.status_code < 300


@dataclass(frozen=True, slots=True)
class _Outgoing:
    hook: Hook
    guid: str
    event: str
    action: str | None
    repository_id: int | None
    body: bytes
    redelivery: bool = False


class Webhooks:
    """The queue of outgoing deliveries and the log of those sent."""

    def __init__(self, clock: Callable[[], datetime], next_id: Callable[[], int], changes: Changes) -> None:
        self.timeout_seconds = DELIVERY_TIMEOUT_SECONDS
        self.hook: Hook | None = None
        self.log: list[Delivery] = []
        self.faults = Faults(self._release)
        self._clock = clock
        self._next_id = next_id
        self._changes = changes
        self._queue: asyncio.Queue[_Outgoing] = asyncio.Queue()
        self._held: list[_Outgoing] = []
        self._unanswered = 0

    @property
    def settled(self) -> bool:
        """Return whether every event sent so far was answered or given up."""
        return self._unanswered == 0

    def set_hook(
        self,
        url: str,
        secret: str,
        content_type: ContentType,
        app_id: int | None,
        events: tuple[str, ...] = ("*",),
        *,
        anew: bool = False,
    ) -> Hook:
        """Send these events from now on to this address. A webhook that is there is edited, or made `anew`."""
        edited = None if anew else self.hook
        made = (self._next_id(), self._clock()) if edited is None else (edited.id, edited.created_at)
        self.hook = Hook(made[0], url, secret, content_type, made[1], app_id, events)
        return self.hook

    def ping(self, hook: Hook, repository_id: int | None = None) -> None:
        """Send what a new webhook sends: https://docs.github.com/webhooks/webhook-events-and-payloads#ping"""
        body = orjson.dumps({"zen": "Keep it logically awesome.", "hook_id": hook.id})
        self._send_later(_Outgoing(hook, str(uuid.uuid4()), "ping", None, repository_id, body))

    def emit(self, event: str, payload: Mapping[str, object], repository_id: int | None) -> None:
        """Queue an event for delivery; nothing happens without a hook."""
        if self.hook is None or not {event, "*"} & set(self.hook.events):
            return
        action = payload.get("action")
        action = action if isinstance(action, str) else None
        body = orjson.dumps(payload)
        for _ in range(2 if self.faults.doubles(event, action) else 1):
            outgoing = _Outgoing(self.hook, str(uuid.uuid4()), event, action, repository_id, body)
            if self.faults.holds(event, action):
                self._held.append(outgoing)
            else:
                self._send_later(outgoing)

    def redeliver(self, guid: str) -> None:
        """Send a logged delivery again with its GUID; 404 if the GUID is unknown."""
        logged = next((delivery for delivery in reversed(self.log) if delivery.guid == guid), None)
        if logged is None or self.hook is None:
            raise not_found()
        payload = _json_part(logged.request_headers, logged.request_body)
        again = _Outgoing(self.hook, guid, logged.event, logged.action, logged.repository_id, payload, redelivery=True)
        self._send_later(again)

    async def run(self, at_once: int) -> None:
        """Deliver what is queued, so many events at once, until cancelled."""
        async with (
            httpx.AsyncClient(trust_env=False, timeout=httpx.Timeout(None)) as client,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(at_once):
                group.create_task(self._send(client))

    async def _send(self, client: httpx.AsyncClient) -> None:
        while True:
            outgoing = await self._queue.get()
            try:
                self.log.append(await self._deliver(client, outgoing))
            finally:
                self._unanswered -= 1
                self._changes.notify()

    def _release(self) -> None:
        held, self._held = self._held, []
        for outgoing in held:
            self._send_later(outgoing)

    def _send_later(self, outgoing: _Outgoing) -> None:
        self._unanswered += 1
        self._queue.put_nowait(outgoing)

    async def _deliver(self, client: httpx.AsyncClient, outgoing: _Outgoing) -> Delivery:
        content = _encode(outgoing.body, outgoing.hook.content_type)
        headers = _headers(outgoing, content)
        delivered_at, started = self._clock(), time.perf_counter()
        status, code, response_headers, text = "OK", 0, dict[str, str](), ""
        try:
            if str(httpx.URL(outgoing.hook.url).host).endswith(".invalid"):  # no name server need be asked
                raise httpx.ConnectError("no such host")
            async with asyncio.timeout(self.timeout_seconds):
                response = await client.post(outgoing.hook.url, content=content, headers=headers)
            status, code = response.reason_phrase or "OK", response.status_code
            response_headers, text = dict(response.headers), response.text
        except TimeoutError:
            status = "timed out"
        except (httpx.TransportError, httpx.InvalidURL) as error:
            status = "failed to connect to host" if isinstance(error, httpx.ConnectError) else "failed to deliver"
        return Delivery(
            id=self._next_id(),
            guid=outgoing.guid,
            hook_id=outgoing.hook.id,
            event=outgoing.event,
            action=outgoing.action,
            repository_id=outgoing.repository_id,
            redelivery=outgoing.redelivery,
            delivered_at=delivered_at,
            duration_seconds=time.perf_counter() - started,
            status=status,
            status_code=code,
            request_headers=headers,
            request_body=content,
            response_headers=response_headers,
            response_body=text,
        )


def sign(secret: str, body: bytes) -> dict[str, str]:
    """Return the two signature headers of a body."""
    return {
        "X-Hub-Signature": "sha1=" + hmac.new(secret.encode(), body, hashlib.sha1).hexdigest(),
        "X-Hub-Signature-256": "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest(),
    }


def _headers(outgoing: _Outgoing, content: bytes) -> dict[str, str]:
    hook, form = outgoing.hook, outgoing.hook.content_type == "form"
    return {
        "Accept": "*/*",
        "Content-Type": "application/x-www-form-urlencoded" if form else "application/json",
        "User-Agent": USER_AGENT,
        "X-GitHub-Delivery": outgoing.guid,
        "X-GitHub-Event": outgoing.event,
        "X-GitHub-Hook-ID": str(hook.id),
        "X-GitHub-Hook-Installation-Target-ID": str(hook.app_id or outgoing.repository_id),
        "X-GitHub-Hook-Installation-Target-Type": "repository" if hook.app_id is None else "integration",
        **sign(hook.secret, content),
    }


def _encode(body: bytes, content_type: ContentType) -> bytes:
    return body if content_type == "json" else urllib.parse.urlencode({"payload": body}).encode()


def _json_part(headers: Mapping[str, str], body: bytes) -> bytes:
    if headers["Content-Type"] == "application/json":
        return body
    return urllib.parse.parse_qs(body.decode())["payload"][0].encode()
