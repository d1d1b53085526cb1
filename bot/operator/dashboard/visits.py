"""A visit: one request of a browser, and the page that answers it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal
from urllib.parse import parse_qsl, quote, unquote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from bot.operator.api.app import read_body
from bot.operator.api.calls import A, Caller, CallError, Calls, Endpoint, R
from bot.operator.dashboard.login import Login, is_https
from bot.operator.dashboard.rendering import environment

FLASH: Final = "threadtree-flash"
FLASH_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Visit:
    """One request. `cookie` is that of the caller; it is empty on pages that are open to strangers."""

    request: Request
    calls: Calls
    login: Login
    cookie: str
    caller: Caller

    @property
    def now(self) -> datetime:
        return self.calls.ctx.clock()

    async def ask(self, endpoint: Endpoint[A, R], asked: A) -> R:
        """Return the API's answer. Raises CallError."""
        return await self.calls.run(endpoint, asked, self.caller)

    async def ask_here(self, endpoint: Endpoint[A, R]) -> R:
        """Return the API's answer to what this address asks. Raises CallError."""
        return await self.ask(endpoint, self.asked(endpoint))

    def asked(self, endpoint: Endpoint[A, R]) -> A:
        """Return what this address asks of an endpoint; a filter that is left empty is none. Raises CallError."""
        items = {name: value for name, value in self.request.query_params.multi_items() if value}
        return endpoint.parse(self.request.path_params, items)

    async def form(self) -> dict[str, str]:
        """Return the fields of the form that was sent. Raises CallError."""
        if not hasattr(self.request.state, "form"):
            body = await read_body(self.request)
            try:
                self.request.state.form = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=20))
            except ValueError:
                raise CallError(400, "This is no form.") from None
        form: dict[str, str] = self.request.state.form
        return form

    def page(self, template: str, *, status: int = 200, **values: object) -> Response:
        """Return a page, with what was to be said since the last one."""
        flash = self.request.cookies.get(FLASH, "")
        said = self.login.unseal(flash, "flash") if flash and self.cookie else None
        words = (
            environment()
            .get_template(template)
            .render(
                now=self.now,
                path=self.request.scope["path"],
                server_url=self.calls.ctx.server_url,
                form_token=self.login.form_token(self.cookie) if self.cookie else "",
                flash=unquote(said) if said else None,
                signed_in=bool(self.cookie),
                may_act=self.caller.is_operator,
                person=self.caller.person,
                **values,
            )
        )
        answer = HTMLResponse(words, status)
        if flash:
            self.drop(answer, FLASH)
        return answer

    def problem(self, status: int, sentence: str) -> Response:
        """Return a page that says what went wrong."""
        heading = {404: "Not found", 503: "Not available now"}.get(status, "That did not work")
        return self.page("problem.html", status=status, heading=heading, sentence=sentence)

    def redirect(self, address: str, flash: str | None = None) -> Response:
        """Return the way to another page, which says the `flash` once."""
        answer = RedirectResponse(address, 303)
        if flash is not None:
            self.keep(answer, FLASH, self.login.seal(quote(flash, safe=""), "flash"), FLASH_SECONDS)
        return answer

    def keep(self, answer: Response, name: str, value: str, seconds: int) -> None:
        """Set a cookie. GitHub leads back here: a strict one would not be sent then."""
        secure = is_https(self.request)
        answer.set_cookie(name, value, max_age=seconds, secure=secure, httponly=True, samesite="lax")

    def drop(self, answer: Response, name: str) -> None:
        answer.delete_cookie(name, secure=is_https(self.request), httponly=True, samesite="lax")


@dataclass(frozen=True, slots=True)
class PageView:
    """One method on one path of the dashboard. `is_open`: strangers may see it; `for_operators`: nobody else."""

    method: Literal["GET", "POST"]
    path: str
    answer: Callable[[Visit], Awaitable[Response]]
    is_open: bool = False
    for_operators: bool = False
