"""Signing in with GitHub on another site: https://docs.github.com/apps/oauth-apps/building-oauth-apps/authorizing-oauth-apps"""

import secrets
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from html import escape
from urllib.parse import parse_qsl, urlencode

import orjson
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from bot.simulated.github.errors import not_found
from bot.simulated.github.model import User
from bot.simulated.github.world import World

CODE_LIFETIME = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class _Code:
    user: User
    challenge: str
    ends: datetime


@dataclass
class Client:
    """The App with which people sign in; `callback_url` is where GitHub leads them back to."""

    id: str = "Iv23liSimulated"
    secret: str = field(default_factory=lambda: secrets.token_hex(20))
    callback_url: str = ""


class SignIn:
    """The pages of one world. A browser is nobody here: the page asks as whom it signs in."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.client = Client()
        self._codes: dict[str, _Code] = {}

    def routes(self) -> list[Route]:
        return [
            Route("/login/oauth/authorize", self._authorize, methods=["GET"]),
            Route("/login/oauth/access_token", self._exchange, methods=["POST"]),
        ]

    async def _authorize(self, request: Request) -> Response:
        """Ask who signs in. `as` is the person who agreed; an empty one did not."""
        query = dict(request.query_params)
        if query.get("client_id") != self.client.id or query.get("redirect_uri", self.client.callback_url) == "":
            raise not_found()
        if query.get("redirect_uri", self.client.callback_url) != self.client.callback_url:
            return self._back(query, error="redirect_uri_mismatch")
        if "as" not in query:
            people = ["", *(user.login for user in self._world.users.values() if user.type == "User")]
            links = "".join(
                f'<li><a href="?{escape(urlencode({**query, "as": one}))}">{escape(one) or "Cancel"}</a></li>'
                for one in people
            )
            return HTMLResponse(f'<!doctype html><html lang="en"><title>Authorize</title><ul>{links}</ul></html>')
        if not query["as"]:
            return self._back(query, error="access_denied")
        user, code = self._world.find_user(query["as"]), secrets.token_hex(10)
        challenge = query.get("code_challenge", "") if query.get("code_challenge_method") == "S256" else ""
        self._codes[code] = _Code(user, challenge, self._world.clock() + CODE_LIFETIME)
        return self._back(query, code=code)

    def _back(self, query: dict[str, str], **told: str) -> Response:
        state = {"state": query["state"]} if "state" in query else {}
        return RedirectResponse(f"{self.client.callback_url}?{urlencode({**told, **state})}", 302)

    async def _exchange(self, request: Request) -> Response:
        """Give a person's token for a code, once. GitHub tells refusals with the status 200."""
        form = dict(parse_qsl((await request.body()).decode()))
        given = (form.get("client_id"), form.get("client_secret"))
        answer = {"error": "incorrect_client_credentials"}
        if given == (self.client.id, self.client.secret):
            code = self._codes.pop(form.get("code", ""), None)
            proof = urlsafe_b64encode(sha256(form.get("code_verifier", "").encode()).digest()).decode().rstrip("=")
            answer = {"error": "bad_verification_code"}
            if code and code.ends > self._world.clock() and code.challenge in ("", proof):
                token = self._world.issue_token(code.user)
                answer = {"access_token": token, "token_type": "bearer", "scope": ""}
        if request.headers.get("accept") == "application/json":
            return Response(orjson.dumps(answer), media_type="application/json")
        return Response(urlencode(answer), media_type="application/x-www-form-urlencoded")
