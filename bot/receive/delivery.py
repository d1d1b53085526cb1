"""From the bytes of a delivery to the row that is stored: signed, parsed once, judged without I/O."""

import hmac
from collections.abc import Sequence
from urllib.parse import parse_qsl

import orjson

from bot.github.payloads import envelope
from bot.store.deliveries import NewDelivery


def sign(body: bytes, secret: bytes) -> str:
    """Return the header `X-Hub-Signature-256` for `body`, as GitHub computes it.

    https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
    """
    return "sha256=" + hmac.digest(secret, body, "sha256").hex()


def is_signed(body: bytes, header: str, secrets: Sequence[bytes]) -> bool:
    """Compare with every secret in constant time. Any header is allowed; without a secret nothing is valid."""
    given = header.encode("utf-8", "surrogatepass")
    # A list, not a generator: with a generator `any` would stop at the first match.
    fits = [hmac.compare_digest(sign(body, secret).encode(), given) for secret in secrets]
    return any(fits)


def delivery_of(guid: str, event: str, body: bytes, platform: str, *, is_form: bool = False) -> NewDelivery:
    """Return the delivery in `body`: JSON, or a form with the JSON in its field `payload`. Any bytes are allowed."""
    try:
        content = _payload_field(body) if is_form else body
        payload = orjson.loads(content)
    except ValueError as problem:
        return NewDelivery(guid, event, "dead", body=body, error=f"The body could not be parsed: {problem}"[:500])
    about = envelope(event, payload, platform)
    if not about.used:
        return NewDelivery(guid, event, "ignored", about.action, about.conversation, about.lock_key)
    return NewDelivery(
        guid,
        event,
        "received",
        about.action,
        about.conversation,
        # A delivery that names no conversation gets a lock of its own; decide finds out what is wrong with it.
        about.lock_key or f"{platform}/{guid}",
        content,
    )


def _payload_field(form: bytes) -> bytes:
    fields = dict(parse_qsl(form.decode("ascii"), errors="strict", max_num_fields=10))
    if "payload" not in fields:
        raise ValueError("the form has no field 'payload'")
    return fields["payload"].encode()
