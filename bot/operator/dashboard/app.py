"""The dashboard's routes, and what goes for all of them: who may enter, which forms count, the headers."""

import asyncio
from functools import partial
from typing import Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bot.operator.api.app import PROBLEMS, explained
from bot.operator.api.calls import CALL_SECONDS, ONLY_OPERATORS, STRANGER, Caller, CallError, Calls
from bot.operator.api.events import News
from bot.operator.dashboard.actions import ACTION_VIEWS
from bot.operator.dashboard.entrance import ENTRANCE
from bot.operator.dashboard.login import COOKIE, Login, is_equal, is_foreign
from bot.operator.dashboard.pages import PAGES
from bot.operator.dashboard.rendering import STATIC
from bot.operator.dashboard.visits import PageView, Visit
from bot.store.scope import UnknownAccessError

VIEWS: Final = (*PAGES, *ENTRANCE, *ACTION_VIEWS)
_OPEN: Final = ("/login", "/static/")
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
UNKNOWN_ACCESS: Final = "GitHub has not told yet what you can read there. Load the page again in a minute."


def dashboard_routes(calls: Calls, login: Login, news: News) -> list[BaseRoute]:
    """Return the routes of the dashboard for those whom `login` lets in. They take every path: put them last."""
    return [Mount("/", _Front(_Dashboard(calls, login, news)))]


class _Dashboard:
    """The views, for a front that let the browser in."""

    def __init__(self, calls: Calls, login: Login, news: News) -> None:
        self.login = login
        self._calls = calls
        self._news = news
        routes = [
            *(Route(view.path, partial(self._answer, view), methods=[view.method]) for view in VIEWS),
            Route("/events", self._events, methods=["GET"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        self.app = Starlette(routes=routes, exception_handlers=dict.fromkeys(PROBLEMS, self._problem))
        self.app.router.redirect_slashes = False

    async def _answer(self, view: PageView, request: Request) -> Response:
        visit = self.visit(request)
        if view.for_operators and not visit.caller.is_operator:
            raise CallError(403, ONLY_OPERATORS)
        async with asyncio.timeout(CALL_SECONDS):
            if view.method == "POST" and not view.is_open:
                await _check_form(visit)
            return await view.answer(visit)

    async def _problem(self, request: Request, problem: Exception) -> Response:
        """Answer with a page that says what went wrong."""
        status, sentence = explained(problem)
        if isinstance(problem, HTTPException) and status == 404:
            sentence = "There is no such page."
        answer = self.visit(request).problem(status, sentence)
        answer.headers.update(getattr(problem, "headers", None) or {})
        return answer

    async def _events(self, request: Request) -> Response:
        """Tell what happens, as long as the cookie is valid, of what its person may see."""
        return self._news.streamed(partial(self.login.scope, request.cookies.get(COOKIE, "")))

    def visit(self, request: Request) -> Visit:
        """Return the visit of whom the front let in."""
        caller: Caller | None = getattr(request.state, "caller", None)
        cookie = request.cookies.get(COOKIE, "") if caller else ""
        return Visit(request, self._calls, self.login, cookie, caller or STRANGER)


class _Front:
    """Sends strangers to `/login`, refuses what another site asks for, and sets the headers of every answer."""

    def __init__(self, dashboard: _Dashboard) -> None:
        self._dashboard = dashboard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        answer: ASGIApp = self._dashboard.app
        # The path as it is routed. `request.url` has the Host header before it, which may hold a path of its own.
        is_open = scope["path"].startswith(_OPEN)
        if not is_open and (refusal := await self._let_in(request)) is not None:
            answer = refusal
        elif request.method not in ("GET", "HEAD") and is_foreign(request):
            answer = PlainTextResponse("Another site asked for this.", 403)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                # The address of a file has its digest.
                is_file = scope["path"].startswith("/static/") and message["status"] in (200, 304)
                headers["Cache-Control"] = "public, max-age=31536000, immutable" if is_file else "no-store"
            await send(message)

        await answer(scope, receive, with_headers)

    async def _let_in(self, request: Request) -> Response | None:
        """Note who comes, for the visit; or return what a stranger gets."""
        try:
            request.state.caller = await self._dashboard.login.caller(request.cookies.get(COOKIE, ""))
        except UnknownAccessError:
            return self._dashboard.visit(request).problem(503, UNKNOWN_ACCESS)
        return None if request.state.caller else _to_login(request)


def _to_login(request: Request) -> Response:
    address = "/login"
    if request.method in ("GET", "HEAD") and request.scope["path"] != "/":
        address += f"?next={quote(request.scope['path'], safe='/')}"
    if "hx-request" in request.headers:
        return Response(status_code=401, headers={"HX-Redirect": "/login"})
    return RedirectResponse(address, 303)


async def _check_form(visit: Visit) -> None:
    """Raise CallError unless the form comes from a page of this cookie."""
    form = await visit.form()
    if not is_equal(form.get("form_token", ""), visit.login.form_token(visit.cookie)):
        raise CallError(403, "This form is no longer valid. Go back, load the page again and repeat it.")
