"""A GitHub App from a manifest: a page on this machine sends the browser to GitHub, which sends it back with a code.

https://docs.github.com/apps/sharing-github-apps/registering-a-github-app-from-a-manifest
"""

import asyncio
import hmac
import json
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from html import escape
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from bot.github.client import APP_PERMISSIONS
from bot.github.errors import NotFound, Refused, Transient
from bot.github.registration import MadeApp
from bot.operator.dashboard.login import CALLBACK
from bot.serve.base import CannotStartError
from bot.serve.web import serving

HOST = "127.0.0.1"
GRACE_SECONDS = 1
USED = "GitHub does not know this code: it was used before, or is older than an hour. Run `threadtree setup` again."
Finish = Callable[[str], Awaitable[MadeApp]]
"""Make the App for a code and keep its secrets."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_STYLE = "body { font: 16px/1.5 system-ui; max-width: 40rem; margin: 3rem auto } button { font: inherit }"


def manifest(
    name: str, url: str, redirect_url: str, people: str, webhook: str, events: Sequence[str]
) -> dict[str, object]:
    """Return the App that the bot at `url` needs: these permissions and events, and no others.

    `webhook` is where its webhook leads. Who is in a team among these `people` is the organisation's to tell.
    """
    teams = {"members": "read"} if "/" in people else {}
    return {
        "name": name,
        "url": url,
        "description": "Threadtree: mention it, and a coding agent works on the thread.",
        "hook_attributes": {"url": webhook, "active": True},
        "redirect_url": redirect_url,
        "callback_urls": [url + CALLBACK],
        "public": False,
        "default_permissions": {**APP_PERMISSIONS, **teams},
        "default_events": list(events),
    }


def code_in(text: str) -> str:
    """Return the code in what was pasted: the code, or the address that GitHub led the browser to."""
    return parse_qs(urlsplit(text).query).get("code", [text])[0]


async def finished(finish: Finish, code: str) -> MadeApp:
    """Make the App for the code. Raises CannotStartError, or Transient where GitHub is away and may be asked again."""
    try:
        return await finish(code)
    except (NotFound, Refused) as refusal:
        raise CannotStartError(USED if isinstance(refusal, NotFound) else f"GitHub makes no App: {refusal}.") from None


class Browser:
    """The page for one App: its `link` is the person's; GitHub's answer counts once, and with the page's own state."""

    def __init__(self, app: Callable[[str], Mapping[str, Any]], new_app_url: str, finish: Finish, port: int) -> None:
        self._state, key = secrets.token_urlsafe(32), secrets.token_urlsafe(16)
        address = f"http://{HOST}:{port}"
        self.link = f"{address}/{key}"
        self.made: asyncio.Future[MadeApp] = asyncio.get_running_loop().create_future()
        """The App, once it is made and kept, or why there is none."""
        self._finish = finish
        self._target = f"{new_app_url}?{urlencode({'state': self._state})}"
        self._manifest = app(f"{address}/made")
        routes = [Route(f"/{key}", self._begin), Route("/made", self._end)]
        self.app = Starlette(
            routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[HOST], www_redirect=False)]
        )

    async def _begin(self, _: Request) -> Response:
        if self.made.done():
            return _page("This page was used. Run <code>threadtree setup</code> again for another App.", 410)
        events = ", ".join(self._manifest["default_events"])
        permissions = ", ".join(f"{name}: {level}" for name, level in self._manifest["default_permissions"].items())
        return _page(
            f"GitHub shows the App before it makes it; where its name is taken, choose another one there.</p>"
            f"<p>Permissions: {escape(permissions)}.</p><p>Events: {escape(events)}.</p>"
            f'<form method="post" action="{escape(self._target)}">'
            f'<input type="hidden" name="manifest" value="{escape(json.dumps(self._manifest))}">'
            "<button>Go on to GitHub</button></form><p>"
        )

    async def _end(self, request: Request) -> Response:
        given = request.query_params
        if not hmac.compare_digest(given.get("state", "").encode(), self._state.encode()):
            return _page("This answer does not belong to the page that <code>threadtree setup</code> shows.", 400)
        self._state = secrets.token_urlsafe(32)  # the answer counts once
        try:
            app = await finished(self._finish, given.get("code", ""))
        except Transient as problem:
            self._state = given["state"]
            return _page(f"{escape(str(problem))}. Reload this page to try again: the code is good for an hour.", 503)
        except Exception as problem:  # noqa: BLE001 -- told where the command runs
            self.made.set_exception(problem)
            return _page("It did not work: the terminal says why.", 502)
        self.made.set_result(app)
        return RedirectResponse(app.install_url, 303, _HEADERS)


def _page(html: str, status: int = 200) -> Response:
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Threadtree</title><style>{_STYLE}</style>'
    return HTMLResponse(f"{head}<h1>Connect Threadtree to GitHub</h1><p>{html}</p></html>", status, _HEADERS)


@asynccontextmanager
async def in_the_browser(
    app: Callable[[str], Mapping[str, Any]], new_app_url: str, finish: Finish
) -> AsyncIterator[Browser]:
    """Serve the page on a free port of this machine until the block ends; `app` is the manifest with its address."""
    listener = socket.create_server((HOST, 0))
    browser = Browser(app, new_app_url, finish, listener.getsockname()[1])
    with listener:
        async with serving(browser.app, listener, GRACE_SECONDS):
            yield browser
