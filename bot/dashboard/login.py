"""Who may see the dashboard: a browser that gave the ADMIN_TOKEN once, for as long as its cookie is valid."""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

COOKIE: Final = "threadtree"
VALID_FOR: Final = timedelta(hours=12)
WRONG_TOKENS_A_MINUTE: Final = 10
"""From all addresses together: behind a proxy all are the same."""


class Login:
    """Checks the token, and what it gave out: cookies and form tokens, all derived from the token.

    So they hold across processes and restarts, and another ADMIN_TOKEN ends them all.
    """

    def __init__(self, token: str, clock: Callable[[], datetime]) -> None:
        self._token = hashlib.sha256(token.encode()).digest()
        self._key = hmac.digest(token.encode(), b"threadtree dashboard", "sha256")
        self._clock = clock
        self._minute = 0
        self._wrong = 0
        self._signed_out: dict[str, float] = {}
        """The cookies that were signed out here, with the end of their time."""

    def sign_in(self, token: str) -> str | None:
        """Return a cookie for the right token, which always enters, else None."""
        # Of digests, so that the time tells nothing of the token, not even its length.
        given = hashlib.sha256(token.strip().encode("utf-8", "surrogatepass")).digest()
        if not hmac.compare_digest(given, self._token):
            minute = int(self._now()) // 60
            self._minute, self._wrong = minute, self._wrong + 1 if minute == self._minute else 1
            return None
        ends = int((self._clock() + VALID_FOR).timestamp())
        return self.seal(f"{ends}.{secrets.token_hex(16)}", "cookie")

    @property
    def is_guessed_at(self) -> bool:
        """Whether many wrong tokens were given in the minute of the last one."""
        return self._wrong > WRONG_TOKENS_A_MINUTE

    def knows(self, cookie: str) -> bool:
        """Return whether a cookie is from here and still valid."""
        value = self.unseal(cookie, "cookie")
        return value is not None and float(value.partition(".")[0]) > self._now() and cookie not in self._signed_out

    def sign_out(self, cookie: str) -> None:
        """End a valid cookie in this process; the browser drops it anyway."""
        now = self._now()
        self._signed_out = {known: ends for known, ends in self._signed_out.items() if ends > now}
        self._signed_out[cookie] = float(cookie.partition(".")[0])

    def form_token(self, cookie: str) -> str:
        """Return what each form of this cookie's pages sends along; another site cannot read it."""
        return self._mac(cookie, "form")

    def seal(self, text: str, purpose: str) -> str:
        """Return the text with a proof that it is from here, for one purpose."""
        return f"{text}.{self._mac(text, purpose)}"

    def unseal(self, sealed: str, purpose: str) -> str | None:
        """Return the text that was sealed for this purpose; None where it is not from here."""
        text, _, mac = sealed.rpartition(".")
        return text if is_equal(mac, self._mac(text, purpose)) else None

    def _mac(self, text: str, purpose: str) -> str:
        return hmac.digest(self._key, f"{purpose} {text}".encode("utf-8", "surrogatepass"), "sha256").hex()

    def _now(self) -> float:
        return self._clock().timestamp()


def is_equal(given: str, right: str) -> bool:
    """Compare in constant time. Foreign text may hold any character."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), right.encode())


def is_foreign(request: Request) -> bool:
    """Return whether another site made the browser send this.

    Browsers send Sec-Fetch-Site over https and to localhost. Without it, Origin tells, unless it is hidden
    (`null`, by our own referrer policy); the form's token is checked in any case.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get("origin", "null")
    try:
        host = urlsplit(origin).netloc
    except ValueError:
        return True
    ours = (request.headers.get("host"), request.headers.get("x-forwarded-host"))
    return origin != "null" and host not in ours


def is_https(request: Request) -> bool:
    """Return whether the browser came over https. Only the sender of a false header would lose by it."""
    return request.scope["scheme"] == "https" or request.headers.get("x-forwarded-proto", "").startswith("https")
