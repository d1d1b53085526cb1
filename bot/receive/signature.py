"""Whether GitHub signed these bytes. https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries"""

import hmac
from collections.abc import Sequence
from enum import Enum


class Signature(Enum):
    """The result of checking `X-Hub-Signature-256` against a body."""

    VALID = "valid"
    MISSING = "missing"
    WRONG = "wrong"


def sign(body: bytes, secret: bytes) -> str:
    """Return the header's value for `body`, as GitHub computes it."""
    return "sha256=" + hmac.digest(secret, body, "sha256").hex()


def check_signature(body: bytes, header: str | None, secrets: Sequence[bytes]) -> Signature:
    """Compare with every secret in constant time. Any header is allowed; without a secret nothing is valid."""
    if not header:
        return Signature.MISSING
    given = header.encode("utf-8", "surrogatepass")
    # A list, not a generator: with a generator `any` would stop at the first match.
    fits = [hmac.compare_digest(sign(body, secret).encode(), given) for secret in secrets]
    return Signature.VALID if any(fits) else Signature.WRONG
