"""Who sees the dashboard: a browser that gave the ADMIN_TOKEN, or whose person signed in with GitHub and may look."""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote, urlsplit

from starlette.requests import Request

from bot.operator.api.calls import WITH_TOKEN, Caller
from bot.store.scope import Scope, UnknownAccessError

if TYPE_CHECKING:  # the web process has no other use for GitHub's client
    from bot.operator.dashboard.access import Access

COOKIE: Final = "threadtree"
VALID_FOR: Final = timedelta(hours=12)
CALLBACK: Final = "/login/callback"
"""Where GitHub leads back to: below the dashboard's own address, it is the callback URL of the App."""
SIGN_IN_COOKIE: Final = "threadtree-sign-in"
SIGN_IN_WITHIN: Final = timedelta(minutes=10)
WRONG_TOKENS_A_MINUTE: Final = 10
"""From all addresses together: behind a proxy all are the same."""


class Login:
    """Checks who comes in, and what it gave out: cookies and form tokens, derived from the ADMIN_TOKEN and the client's
    secret. So they hold across processes and restarts, and another value of one of them ends them all.
    """

    def __init__(self, clock: Callable[[], datetime], token: str | None, access: "Access | None" = None) -> None:
        self.access = access
        """What lets people in who signed in with GitHub; None where they cannot."""
        self.has_token = token is not None
        self._token = hashlib.sha256((token or "").encode()).digest()
        secret = "\n".join((token or "", access.sign_in.client_secret if access else ""))
        self._key = hmac.digest(secret.encode(), b"threadtree dashboard", "sha256")
        self._clock = clock
        self._minute = 0
        self._wrong = 0
        self._signed_out: dict[str, float] = {}
        """The cookies that were signed out here, with the end of their time."""

    def with_token(self, token: str) -> str | None:
        """Return a cookie for the right token, which always enters, else None."""
        # Compare digests, so that the time tells nothing of the token, not even its length.
        given = hashlib.sha256(token.strip().encode("utf-8", "surrogatepass")).digest()
        if not (self.has_token and hmac.compare_digest(given, self._token)):
            minute = int(self._now()) // 60
            self._minute, self._wrong = minute, self._wrong + 1 if minute == self._minute else 1
            return None
        return self.of_person("")

    def of_person(self, login: str) -> str:
        """Return a cookie of a person, by their login; without one, of whoever knows the token."""
        return self._ending(VALID_FOR, login, "cookie")

    @property
    def is_guessed_at(self) -> bool:
        """Whether many wrong tokens were given in the minute of the last one."""
        return self._wrong > WRONG_TOKENS_A_MINUTE

    async def caller(self, cookie: str) -> Caller | None:
        """Return who comes with the cookie, and what they may see; None for a stranger. Raises UnknownAccessError."""
        login = self._unended(cookie, "cookie")
        if login is None or cookie in self._signed_out:
            return None
        if not login:
            return Caller("dashboard", WITH_TOKEN)
        scope = await self.access.scope(login) if self.access else None
        return None if scope is None else Caller("dashboard", login, scope)

    async def scope(self, cookie: str) -> Scope | None:
        """Return what whoever comes with the cookie may see now; None where that is not known, too."""
        with suppress(UnknownAccessError):
            caller = await self.caller(cookie)
            return caller.scope if caller else None
        return None

    def sign_out(self, cookie: str) -> None:
        """End a valid cookie in this process; the browser drops it anyway."""
        now = self._now()
        self._signed_out = {known: ends for known, ends in self._signed_out.items() if ends > now}
        self._signed_out[cookie] = float(cookie.partition(".")[0])

    def begin(self, path: str) -> tuple[str, str, str]:
        """Return a cookie for a sign-in on GitHub that leads to `path`, with its state and its verifier.

        Both follow from the cookie: only the browser that began the sign-in can end it.
        """
        cookie = self._ending(SIGN_IN_WITHIN, quote(path, safe=""), "sign-in")
        return cookie, self._mac(cookie, "state"), self._mac(cookie, "verifier")

    def begun(self, cookie: str, state: str) -> tuple[str, str] | None:
        """Return the verifier and the path of the sign-in that this browser began; None for another's or an old one."""
        path = self._unended(cookie, "sign-in")
        if path is None or not is_equal(state, self._mac(cookie, "state")):
            return None
        return self._mac(cookie, "verifier"), unquote(path)

    def _ending(self, after: timedelta, text: str, purpose: str) -> str:
        """Return a sealed text that is like no other and ends."""
        ends = int((self._clock() + after).timestamp())
        return self.seal(f"{ends}.{secrets.token_hex(16)}.{text}", purpose)

    def _unended(self, sealed: str, purpose: str) -> str | None:
        value = self.unseal(sealed, purpose)
        if value is None:
            return None
        ends, _, text = value.split(".", 2)
        return text if float(ends) > self._now() else None

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
